import type { TranslationBundle } from '@jupyterlab/translation';

import { sizeOf, type SizeUnit, wholeSize } from './units.js';

/** What a meter shows: a part of a whole in percent, in words, and as a screen reader says it. */
export interface IMeterWords {
  readonly percent: number | null;
  readonly text: string;
  readonly spoken: string;
  readonly reservedPercent?: number;
}

/** A share of time. @param reason why it is not known */
export function percentWords(
  value: number | null,
  reason: string | undefined,
  trans: TranslationBundle
): IMeterWords {
  if (value === null) {
    return unknown(reason, trans);
  }
  const text = trans.__('%1 %', Math.round(value));
  return { percent: value, text, spoken: text };
}

/** Memory in use, in bytes; what a driver keeps for itself stands apart. */
export function memoryWords(
  memory: { used: number | null; total: number | null; reserved?: number | null; reason?: string },
  unit: SizeUnit,
  trans: TranslationBundle,
  isShort = false
): IMeterWords {
  const { used, total, reserved, reason } = memory;
  if (used === null || total === null) {
    return unknown(reason, trans);
  }
  const spoken = sizeOf(used, total, unit);
  const share = (bytes: number): number => (100 * bytes) / total;
  return {
    percent: share(used),
    text: isShort ? wholeSize(used, unit) : spoken,
    spoken: reserved
      ? trans.__('%1, the driver reserves %2', spoken, sizeOf(reserved, total, unit))
      : spoken,
    reservedPercent: share(reserved ?? 0)
  };
}

function unknown(reason: string | undefined, trans: TranslationBundle): IMeterWords {
  const spoken = trans.__('not available: %1', reason ?? trans.__('no reason was given'));
  return { percent: null, text: trans.__('n/a'), spoken };
}
