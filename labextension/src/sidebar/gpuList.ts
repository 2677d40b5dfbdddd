import type { TranslationBundle } from '@jupyterlab/translation';
import { makeMeter, makeSparkline, makeState } from 'mgpu-views/marks.js';
import { keyed, make, seriesClass, setAttribute, setShown, setText } from 'mgpu-views/parts.js';

import { isOurs, lookOf, memoryOf, sparkSentence, titleOf, whoWords } from './gpuWords.js';
import { LENGTH } from './histories.js';
import { makeHostRows } from './hostRow.js';
import { memoryWords, percentWords } from './meters.js';
import type { IGpu } from './rows.js';
import { walkable } from './roving.js';
import { COMMANDS, type IShown, type ITools } from './shown.js';
import type { SizeUnit } from './units.js';

const MANY = 8;
/** So many readings have room in one line with everything else. */
const COMPACT_LENGTH = 40;

/** The GPUs of the server: how busy, how full, whose; ours come first where there are many. */
export function makeGpuList(tools: ITools): { node: HTMLElement; update(shown: IShown): void } {
  const { trans, commands } = tools;
  const trouble = make('p', 'mgpu-trouble');
  const list = make('ul', 'mgpu-rows mgpu-gpu-rows');
  const more = make('p', 'mgpu-hint');
  const hosts = makeHostRows(trans);
  const node = make('div', 'mgpu-section', trouble, list, more, hosts.node);
  let gpus: IGpu[] = [];
  const rows = keyed<IGpuRow>(
    list,
    row => row.gpu.id,
    () => makeGpuRow(trans)
  );
  tools.menu.serve(list, () => [
    { command: COMMANDS.history, args: {} },
    { command: COMMANDS.exportHistory, args: {} },
    { command: COMMANDS.diagnostics, args: {} }
  ]);
  const refresh = walkable(list, {
    keys: () => gpus.map(gpu => gpu.id),
    show: () => undefined,
    onEnter: () => void commands.execute(COMMANDS.history)
  });
  return {
    node,
    update({ model, settings }) {
      const { telemetry } = model.document;
      const all = model.document.gpus;
      gpus = settings.onlyOurs ? all.filter(isOurs) : all;
      const hidden = all.length - gpus.length;
      setText(
        more,
        trans._n('%1 GPU of others is not shown.', '%1 GPUs of others are not shown.', hidden)
      );
      setShown(more, hidden > 0);
      const isCompact =
        settings.density === 'auto' ? gpus.length >= MANY : settings.density === 'compact';
      if (isCompact) {
        gpus.sort((a, b) => Number(isOurs(b)) - Number(isOurs(a)) || a.order - b.order);
      }
      list.classList.toggle('mgpu-compact', isCompact);
      rows.update(
        gpus.map(gpu => ({
          gpu,
          unit: settings.sizeUnit,
          isCompact,
          values: model.histories.utilizationOf(gpu.id).slice(isCompact ? -COMPACT_LENGTH : 0),
          warnPercent: settings.warnMemoryPercent,
          stepS: model.histories.stepS,
          isProven: proofOf(gpu, model)
        }))
      );
      const words =
        telemetry?.trouble ??
        (telemetry && !all.length
          ? trans.__('No GPU is here. Pools still work on CPU engines: %parpool 2')
          : '');
      setText(trouble, words);
      setShown(trouble, words !== '');
      setShown(list, gpus.length > 0);
      hosts.update(model.document.hosts, settings.sizeUnit);
      refresh();
    }
  };
}

interface IGpuRow {
  readonly gpu: IGpu;
  readonly unit: SizeUnit;
  readonly isCompact: boolean;
  readonly values: readonly (number | null)[];
  readonly warnPercent: number | null;
  readonly stepS: number;
  /** Whether the engines that use it have proven it; null if none does. */
  readonly isProven: boolean | null;
}

function makeGpuRow(trans: TranslationBundle): { node: HTMLElement; update(row: IGpuRow): void } {
  const label = make('span', 'mgpu-row-name');
  const name = make('span', 'mgpu-row-quiet mgpu-row-wide');
  const state = makeState();
  const [heat, power] = [make('span', 'mgpu-number'), make('span', 'mgpu-number')];
  const [spark, busy, memory] = [makeSparkline(), makeMeter(), makeMeter()];
  const proof = makeState();
  const users = make('span', 'mgpu-row-users');
  const readings = make('div', 'mgpu-row-line mgpu-row-readings', spark.node, busy.node);
  const held = make('div', 'mgpu-row-line mgpu-row-memory', memory.node);
  const who = make('div', 'mgpu-row-line mgpu-row-who', users, proof.node);
  const head = make('div', 'mgpu-row-line mgpu-row-head', label, name, state.node, heat, power);
  const node = make('li', 'mgpu-row', head, readings, held, who);
  return {
    node,
    update({ gpu, unit, isCompact, values, stepS, isProven, warnPercent }) {
      node.dataset.key = gpu.id;
      setText(label, isCompact ? String(gpu.index ?? gpu.label) : gpu.label);
      setText(name, (gpu.name ?? '').replace(/^NVIDIA /, ''));
      setAttribute(node, 'title', titleOf(gpu, trans));
      const look = lookOf(gpu, warnPercent, trans);
      state.update(look.look, look.words);
      setShown(state.node, look.isShown);
      setText(
        heat,
        gpu.temperature === null || gpu.state !== 'ok'
          ? ''
          : trans.__('%1 °C', Math.round(gpu.temperature))
      );
      setText(
        power,
        gpu.power === null || gpu.state !== 'ok' ? '' : trans.__('%1 W', Math.round(gpu.power))
      );
      setAttribute(spark.node, 'class', `mgpu-spark ${seriesClass(gpu.index ?? 0)}`);
      const busyLabel = trans.__('%1 busy', gpu.label);
      spark.update(values, {
        low: 0,
        high: 100,
        slots: isCompact ? COMPACT_LENGTH : LENGTH,
        label: () => sparkSentence(busyLabel, values, stepS, trans)
      });
      busy.update({
        name: '',
        label: busyLabel,
        ...percentWords(gpu.utilization, gpu.reasons.utilization, trans)
      });
      const memoryLabel = trans.__('memory of %1', gpu.label);
      memory.update({
        name: '',
        label: memoryLabel,
        ...memoryWords(memoryOf(gpu), unit, trans, isCompact)
      });
      setText(users, whoWords(gpu, isCompact, trans));
      setShown(proof.node, isProven !== null && !isCompact);
      proof.update(
        isProven ? 'proven' : 'unproven',
        isProven ? trans.__('proven') : trans.__('not proven')
      );
      const isIdle = gpu.state === 'ok' && gpu.utilization === 0 && !gpu.users.length;
      // What was last read of a GPU that is gone is not so any more.
      const isGone = gpu.state === 'lost' || gpu.state === 'unusable';
      setShown(who, isCompact || !isIdle);
      [readings, held].forEach(line => setShown(line, !isGone && (isCompact || !isIdle)));
      node.classList.toggle('mgpu-row-off', gpu.state !== 'ok');
      // One of another host has no number here, so its whole name.
      node.classList.toggle('mgpu-row-named', gpu.index === null);
    }
  };
}

function proofOf(gpu: IGpu, model: IShown['model']): boolean | null {
  const proofs = gpu.users
    .filter(user => user.ours && user.pool !== null)
    .map(({ pool, rank }) =>
      model.document.enginesOf(pool ?? '').find(engine => engine.rank === rank)
    )
    .map(engine => engine?.proven ?? null)
    .filter(proven => proven !== null);
  return proofs.length ? proofs.every(Boolean) : null;
}
