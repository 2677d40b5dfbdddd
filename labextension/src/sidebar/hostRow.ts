import type { TranslationBundle } from '@jupyterlab/translation';
import { makeMeter } from 'mgpu-views/marks.js';
import { keyed, make, setShown, setText } from 'mgpu-views/parts.js';

import { memoryWords, percentWords } from './meters.js';
import type { IHost } from './rows.js';
import type { SizeUnit } from './units.js';

/** Cores and memory of the hosts, all there is where no GPU is; the server's machine first. */
export function makeHostRows(trans: TranslationBundle): {
  node: HTMLElement;
  update(hosts: readonly IHost[], unit: SizeUnit): void;
} {
  const node = make('div', 'mgpu-host-rows');
  const rows = keyed<IHostRow>(
    node,
    row => row.host.id,
    () => makeHostRow(trans)
  );
  return { node, update: (hosts, unit) => rows.update(hosts.map(host => ({ host, unit }))) };
}

interface IHostRow {
  readonly host: IHost;
  readonly unit: SizeUnit;
}

function makeHostRow(trans: TranslationBundle): { node: HTMLElement; update(row: IHostRow): void } {
  const [busy, memory] = [makeMeter(), makeMeter()];
  const name = make('span', 'mgpu-row-name');
  const trouble = make('p', 'mgpu-row-quiet');
  const node = make(
    'div',
    'mgpu-row mgpu-row-host',
    make('div', 'mgpu-row-line mgpu-row-head', name),
    make('div', 'mgpu-row-line mgpu-row-readings', busy.node),
    make('div', 'mgpu-row-line mgpu-row-memory', memory.node),
    trouble
  );
  return {
    node,
    update({ host, unit }) {
      const isOther = host.id !== 'host';
      const { cpu, memory_used: used, memory_total: total, reasons } = host;
      const on = (what: string) => (isOther ? trans.__('%1 of %2', what, host.hostname) : what);
      setText(name, isOther ? host.hostname : trans.__('This machine'));
      busy.update({
        name: trans.__('CPU'),
        label: on(trans.__('CPU busy')),
        ...percentWords(cpu, reasons.cpu, trans)
      });
      const reason = reasons.memory_used ?? reasons.memory_total;
      memory.update({
        name: trans.__('memory'),
        label: on(trans.__('host memory')),
        ...memoryWords({ used, total, reason }, unit, trans)
      });
      const age = host.stale_s ? trans.__('stale %1 s', host.stale_s) : '';
      const words = [age, host.trouble].filter(Boolean).join(': ');
      setText(trouble, words);
      setShown(trouble, words !== '');
    }
  };
}
