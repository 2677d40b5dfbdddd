import type { TranslationBundle } from '@jupyterlab/translation';
import { makeMeter } from 'mgpu-views/marks.js';
import { make, setShown } from 'mgpu-views/parts.js';

import { memoryWords, percentWords } from './meters.js';
import type { IHost } from './rows.js';
import type { SizeUnit } from './units.js';

/** The server's machine: its cores and its memory, which are all there is where no GPU is. */
export function makeHostRow(trans: TranslationBundle): {
  node: HTMLElement;
  update(host: IHost | null, unit: SizeUnit): void;
} {
  const [busy, memory] = [makeMeter(), makeMeter()];
  const name = make('span', 'mgpu-row-name');
  name.textContent = trans.__('This machine');
  const node = make(
    'div',
    'mgpu-row mgpu-row-host',
    make('div', 'mgpu-row-line mgpu-row-head', name),
    make('div', 'mgpu-row-line mgpu-row-readings', busy.node),
    make('div', 'mgpu-row-line mgpu-row-memory', memory.node)
  );
  return {
    node,
    update(host, unit) {
      setShown(node, host !== null);
      if (host === null) {
        return;
      }
      const { cpu, memory_used: used, memory_total: total, reasons } = host;
      busy.update({
        name: trans.__('CPU'),
        label: trans.__('CPU busy'),
        ...percentWords(cpu, reasons.cpu, trans)
      });
      const reason = reasons.memory_used ?? reasons.memory_total;
      memory.update({
        name: trans.__('memory'),
        label: trans.__('host memory'),
        ...memoryWords({ used, total, reason }, unit, trans)
      });
    }
  };
}
