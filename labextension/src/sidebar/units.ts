/** How sizes are written: GiB (2 ** 30 bytes) or GB (10 ** 9). */
export type SizeUnit = 'GiB' | 'GB';

const BYTES: Readonly<Record<SizeUnit, number>> = { GiB: 2 ** 30, GB: 1e9 };

/** A size in few characters, such as 61 GiB. */
export function wholeSize(bytes: number, unit: SizeUnit): string {
  return `${whole(bytes, unit)} ${unit}`;
}

/** A share of a size, such as 61.2 / 139.8 GiB. */
export function sizeOf(used: number, total: number, unit: SizeUnit): string {
  return `${amount(used, unit)} / ${amount(total, unit)} ${unit}`;
}

/** A share of a size in few characters, such as 61/140 GiB. */
export function shortSizeOf(used: number, total: number, unit: SizeUnit): string {
  return `${whole(used, unit)}/${wholeSize(total, unit)}`;
}

/** Numbers with runs joined: 0, 1, 2, 5 is written 0-2,5. */
export function ranges(numbers: readonly number[]): string {
  const sorted = [...new Set(numbers)].sort((a, b) => a - b);
  const runs: [number, number][] = [];
  for (const number of sorted) {
    const last = runs.at(-1);
    if (last?.[1] === number - 1) {
      last[1] = number;
    } else {
      runs.push([number, number]);
    }
  }
  return runs
    .map(([from, to]) => (from === to ? `${from}` : `${from}${to === from + 1 ? ',' : '-'}${to}`))
    .join(',');
}

/** How long a task still takes, in seconds, at the pace that it had; null if that cannot be told. */
export function secondsLeft(
  progress: number | null,
  startedS: number | null,
  nowS: number
): number | null {
  if (progress === null || startedS === null || progress <= 0.001 || nowS <= startedS) {
    return null;
  }
  return ((nowS - startedS) * (1 - Math.min(1, progress))) / progress;
}

function whole(bytes: number, unit: SizeUnit): string {
  return (bytes / BYTES[unit]).toFixed(0);
}

function amount(bytes: number, unit: SizeUnit): string {
  return (bytes / BYTES[unit]).toFixed(1);
}
