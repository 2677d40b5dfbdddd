import type { TranslationBundle } from '@jupyterlab/translation';

import type { memoryWords } from './meters.js';
import type { IGpu } from './rows.js';
import { ranges } from './units.js';

/** Who uses a GPU, or what is wrong with it. */
export function whoWords(gpu: IGpu, isCompact: boolean, trans: TranslationBundle): string {
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
export function isOurs(gpu: IGpu): boolean {
  return gpu.users.some(user => user.ours);
}

/** The glyph of a GPU's state, its words, and whether they are shown: busy is seen from the numbers. */
export function lookOf(
  gpu: IGpu,
  warnPercent: number | null,
  trans: TranslationBundle
): { look: string; words: string; isShown: boolean } {
  if (gpu.state === 'stale') {
    return { look: 'stale', words: trans.__('stale %1 s', gpu.stale_s ?? 0), isShown: true };
  }
  if (gpu.state !== 'ok') {
    return {
      look: gpu.state === 'lost' ? 'lost' : 'unknown',
      words: gpuWords(gpu.state, trans),
      isShown: true
    };
  }
  if (gpu.throttle?.length) {
    const words = trans.__('slowed: %1', gpu.throttle.join(', '));
    return { look: 'degraded', words, isShown: true };
  }
  const { memory_used: used, memory_total: total } = gpu;
  if (warnPercent !== null && used !== null && total && (100 * used) / total >= warnPercent) {
    return { look: 'degraded', words: trans.__('memory nearly full'), isShown: true };
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

/** A GPU's memory, for its meter. */
export function memoryOf(gpu: IGpu): Parameters<typeof memoryWords>[0] {
  const { memory_used: used, memory_total: total, memory_reserved: reserved, reasons } = gpu;
  return { used, total, reserved, reason: reasons.memory_used ?? reasons.memory_total };
}

/** A sparkline in one sentence. */
export function sparkSentence(
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
export function titleOf(gpu: IGpu, trans: TranslationBundle): string {
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
