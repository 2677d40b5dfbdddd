// @ts-check
/** Numbers of curves: smoothing, thinning to the pixels, ticks. No drawing here. */

/**
 * Smooth by an exponential average whose start is corrected; gaps stay gaps.
 * @param {(number|null)[]} values @param {number} weight 0 (raw) to below 1
 */
export function smooth(values, weight) {
  let mean = 0;
  let factor = 1;
  return values.map((value) => {
    if (value === null || !Number.isFinite(value)) return null;
    mean = weight * mean + (1 - weight) * value;
    factor *= weight;
    return mean / (1 - factor);
  });
}

/**
 * Thin a curve to what a width can show: of each pixel column the lowest and the highest value.
 * @param {number[]} xs in pixels, rising
 * @param {(number|null)[]} ys in pixels, or null for a gap
 * @returns {string} the path; neighbours of a gap are not joined
 */
export function thinPath(xs, ys) {
  let path = "";
  let command = "M";
  let i = 0;
  while (i < xs.length) {
    const y = ys[i];
    if (y === null) {
      command = "M";
      i++;
      continue;
    }
    const end = Math.floor(xs[i]) + 1;
    let [low, high] = [i, i];
    let [lowest, highest] = [y, y];
    for (i++; i < xs.length && xs[i] < end; i++) {
      const next = ys[i];
      if (next === null) break;
      if (next < lowest) [low, lowest] = [i, next];
      else if (next > highest) [high, highest] = [i, next];
    }
    const [first, second] = low < high ? [low, high] : [high, low];
    path += `${command}${tenths(xs[first])} ${tenths(ys[first])}`;
    if (first !== second) path += `L${tenths(xs[second])} ${tenths(ys[second])}`;
    command = "L";
  }
  return path;
}

/** @param {number|null} pixels */
function tenths(pixels) {
  return Math.round(/** @type {number} */ (pixels) * 10) / 10;
}

/**
 * Points as one path of round dots, at most one per three pixels.
 * @param {number[]} xs @param {(number|null)[]} ys in pixels
 */
export function dotsPath(xs, ys) {
  let path = "";
  let before = -Infinity;
  xs.forEach((x, i) => {
    const y = ys[i];
    if (y === null || x - before < 3) return;
    path += `M${tenths(x)} ${tenths(y)}h0`;
    before = x;
  });
  return path;
}

/**
 * Round numbers that divide a range, about as many as asked for.
 * @param {number} low @param {number} high @param {number} count
 */
export function ticks(low, high, count) {
  const raw = (high - low) / Math.max(1, count);
  if (!(raw > 0) || !Number.isFinite(raw)) return [low];
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * ([1, 2, 5, 10].find((n) => n * power >= raw * 0.75) ?? 10);
  const found = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n++) found.push(n * step);
  return found;
}

/** Decades of a logarithmic range, with 2 and 5 where it is short.
 * @param {number} low above 0 @param {number} high */
export function logTicks(low, high) {
  const first = Math.floor(Math.log10(low));
  const last = Math.ceil(Math.log10(high));
  const stride = Math.max(1, Math.ceil((last - first) / 5));
  const parts = last - first <= 2 ? [1, 2, 5] : [1];
  const found = [];
  for (let n = first; n <= last; n += stride) {
    for (const part of parts) found.push(part * 10 ** n);
  }
  return found.filter((value) => value >= low * 0.999 && value <= high * 1.001);
}

/** A tick's words, short: 0.25, 12k, 1e-5. @param {number} value */
export function tickWords(value) {
  const size = Math.abs(value);
  if (size < 1e-12) return "0";
  if (size >= 1e6) return `${+(value / 1e6).toPrecision(3)}M`;
  if (size >= 1e4) return `${+(value / 1e3).toPrecision(3)}k`;
  if (size < 1e-2) {
    const [digits, exponent] = value.toExponential(2).split("e");
    return `${+digits}e${exponent}`;
  }
  return String(+value.toPrecision(3));
}

/** The place of the last x at or before a position; -1 if there is none.
 * @param {number[]} xs rising @param {number} x */
export function placeOf(xs, x) {
  let [low, high] = [0, xs.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] <= x) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/**
 * The range that holds all values; on a logarithmic axis only what is above 0.
 * @param {(number|null)[][]} lists @param {boolean} isLog
 * @returns {[number, number]}
 */
export function rangeOf(lists, isLog) {
  let [low, high] = [Infinity, -Infinity];
  for (const list of lists) {
    for (const value of list) {
      if (value === null || !Number.isFinite(value) || (isLog && value <= 0)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  if (low > high) return isLog ? [0.1, 1] : [0, 1];
  if (isLog) return low === high ? [low / 2, high * 2] : [low, high];
  const margin = (high - low || Math.abs(high) || 1) * 0.05;
  return [low - margin, high + margin];
}

/**
 * Move labels apart so that none covers another.
 * @param {number[]} wanted heights, any order @param {number} gap @param {number} bottom
 * @returns {number[]} a height for each
 */
export function spread(wanted, gap, bottom) {
  const order = wanted.map((_, i) => i).sort((a, b) => wanted[a] - wanted[b]);
  const placed = wanted.slice();
  let floor = -Infinity;
  for (const i of order) floor = placed[i] = Math.max(wanted[i], floor + gap);
  let ceiling = bottom;
  for (const i of order.reverse()) {
    placed[i] = Math.min(placed[i], ceiling);
    ceiling = placed[i] - gap;
  }
  return placed;
}

const VALIDATION_PREFIX = /^(validation|valid|val|test|eval)[_/ ]/;

/** A validation curve's name without the word for that. @param {string} name */
export function baseName(name) {
  return name.replace(VALIDATION_PREFIX, "");
}

/**
 * Put curves into charts: a validation curve joins the chart of the training curve of its name.
 * @param {{ name: string, validation: boolean, steps: number[], values: (number|null)[] }[]} curves
 * @param {{ training: string, validation: string }} names
 */
export function chartGroups(curves, names) {
  /** @type {Map<string, import("./plot.js").Drawing>} */
  const groups = new Map();
  for (const { name, validation, steps, values } of curves) {
    const title = validation ? baseName(name) : name;
    const group = groups.get(title) ?? { title, lines: [] };
    groups.set(title, group);
    const label = validation ? names.validation : names.training;
    group.lines.push({ key: `${name} ${validation}`, label, number: validation ? 1 : 0, xs: steps, ys: values, dots: validation });
  }
  return [...groups.values()];
}
