import type { TranslationBundle } from '@jupyterlab/translation';
import { makeMeter, makeSparkline, makeState } from 'mgpu-views/marks.js';
import { keyed, make, seriesClass, setAttribute, setShown, setText } from 'mgpu-views/parts.js';

import { LENGTH } from './histories.js';
import { makeHostRow } from './hostRow.js';
import { memoryWords, percentWords } from './meters.js';
import type { IGpu } from './rows.js';
import { walkable } from './roving.js';
import { COMMANDS, type IShown, type ITools } from './shown.js';
import { ranges, type SizeUnit } from './units.js';

const MANY = 8;

/** The GPUs of the server: how busy, how full, whose; ours come first where there are many. */
export function makeGpuList(tools: ITools): { node: HTMLElement; update(shown: IShown): void } {
  const { trans, commands } = tools;
  const trouble = make('p', 'mgpu-trouble');
  const list = make('ul', 'mgpu-rows mgpu-gpu-rows');
  const host = makeHostRow(trans);
  const node = make('div', 'mgpu-section', trouble, list, host.node);
  let gpus: IGpu[] = [];
  const rows = keyed<IGpuRow>(
    list,
    row => row.gpu.id,
    () => makeGpuRow(trans)
  );
  const refresh = walkable(list, {
    keys: () => gpus.map(gpu => gpu.id),
    show: () => undefined,
    onEnter: () => void commands.execute(COMMANDS.history)
  });
  return {
    node,
    update({ model, settings }) {
      const { telemetry } = model.document;
      gpus = model.document.gpus;
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
          staleS: telemetry?.stale_s ?? null,
          values: model.histories.utilizationOf(gpu.id),
          stepS: model.histories.stepS,
          isProven: proofOf(gpu, model)
        }))
      );
      const words =
        telemetry?.trouble ??
        (telemetry && !gpus.length
          ? trans.__('No GPU is here. Pools still work on CPU engines: %parpool 2')
          : '');
      setText(trouble, words);
      setShown(trouble, words !== '');
      setShown(list, gpus.length > 0);
      host.update(model.document.host, settings.sizeUnit);
      refresh();
    }
  };
}

interface IGpuRow {
  readonly gpu: IGpu;
  readonly unit: SizeUnit;
  readonly isCompact: boolean;
  readonly staleS: number | null;
  readonly values: readonly (number | null)[];
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
    update({ gpu, unit, isCompact, staleS, values, stepS, isProven }) {
      node.dataset.key = gpu.id;
      setText(label, isCompact ? String(gpu.index ?? gpu.label) : gpu.label);
      setText(name, (gpu.name ?? '').replace(/^NVIDIA /, ''));
      setAttribute(node, 'title', titleOf(gpu, trans));
      const look = lookOf(gpu, staleS, trans);
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
        slots: LENGTH,
        label: () => sparkSentence(busyLabel, values, stepS, trans)
      });
      busy.update({ name: '', label: busyLabel, ...percentWords(gpu.utilization, gpu.reasons.utilization, trans) });
      const memoryLabel = trans.__('memory of %1', gpu.label);
      memory.update({ name: '', label: memoryLabel, ...memoryWords(memoryOf(gpu), unit, trans, isCompact) });
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
    }
  };
}

function whoWords(gpu: IGpu, isCompact: boolean, trans: TranslationBundle): string {
  if (isCompact) {
    return gpu.state === 'ok' ? shortUsersOf(gpu, trans) : gpuWords(gpu.state, trans);
  }
  return gpu.state === 'ok' ? usersOf(gpu, trans) : (gpu.state_words ?? usersOf(gpu, trans));
}

function usersOf(gpu: IGpu, trans: TranslationBundle): string {
  const words = gpu.users
    .map(({ ours, pool_name, rank, words }) =>
      ours && pool_name !== null && rank !== null
        ? trans.__('rank %1 of %2', rank, pool_name)
        : words
    )
    .join(', ');
  return words || trans.__('no process is listed');
}

/** Whose a GPU is, in one word: our rank, somebody else, or nobody. */
function shortUsersOf(gpu: IGpu, trans: TranslationBundle): string {
  const ranks = gpu.users.filter(user => user.ours).map(user => user.rank ?? 0);
  if (ranks.length) {
    return trans.__('rank %1', ranges(ranks));
  }
  return gpu.users.length ? trans.__('others') : '';
}

/** Whether one of this user's engines is on a GPU. */
function isOurs(gpu: IGpu): boolean {
  return gpu.users.some(user => user.ours);
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

function lookOf(
  gpu: IGpu,
  staleS: number | null,
  trans: TranslationBundle
): { look: string; words: string; isShown: boolean } {
  if (gpu.state !== 'ok') {
    return {
      look: gpu.state === 'lost' ? 'lost' : 'unknown',
      words: gpuWords(gpu.state, trans),
      isShown: true
    };
  }
  if (staleS !== null) {
    return { look: 'stale', words: trans.__('stale %1 s', Math.round(staleS)), isShown: true };
  }
  if (gpu.throttle?.length) {
    const words = trans.__('slowed: %1', gpu.throttle.join(', '));
    return { look: 'degraded', words, isShown: true };
  }
  const isIdle = gpu.utilization === 0;
  return {
    look: isIdle ? 'idle' : 'busy',
    words: isIdle ? trans.__('idle') : trans.__('busy'),
    isShown: isIdle && !gpu.users.length
  };
}

function gpuWords(state: string, trans: TranslationBundle): string {
  const words: Readonly<Record<string, string>> = {
    lost: trans.__('lost'),
    divided: trans.__('divided'),
    unusable: trans.__('not usable')
  };
  return words[state] ?? state;
}

function memoryOf(gpu: IGpu): Parameters<typeof memoryWords>[0] {
  const { memory_used: used, memory_total: total, memory_reserved: reserved, reasons } = gpu;
  return { used, total, reserved, reason: reasons.memory_used ?? reasons.memory_total };
}

function sparkSentence(
  label: string,
  values: readonly (number | null)[],
  stepS: number,
  trans: TranslationBundle
): string {
  const known = values.filter(value => value !== null);
  if (!known.length) {
    return trans.__('%1: no readings yet', label);
  }
  const [now, low, high] = [known.at(-1) ?? 0, Math.min(...known), Math.max(...known)];
  const numbers = [now, low, high].map(value => String(Math.round(value)));
  const span = Math.round(stepS * values.length);
  return trans.__('%1, last %2 s: now %3 %, lowest %4 %, highest %5 %', label, span, ...numbers);
}

/** What a row says when a pointer rests on it. */
function titleOf(gpu: IGpu, trans: TranslationBundle): string {
  const reasons = Object.entries(gpu.reasons).map(([field, words]) => `${field}: ${words}`);
  const meaning = trans.__('Busy is the share of time in which anything ran on the GPU.');
  const name = `${gpu.label}, ${gpu.name ?? trans.__('unknown device')}`;
  return [
    name,
    gpu.state_words ?? '',
    gpu.users.map(user => user.words).join(', '),
    meaning,
    ...reasons
  ]
    .filter(Boolean)
    .join('\n');
}
