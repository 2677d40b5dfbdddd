// @ts-check
/** The parts of a chart: its scale, the shapes of its lines, its ticks and labels. */

import { makeSvg, seriesClass, setAttribute, setText } from "./parts.js";
import { dotsPath, logTicks, rangeOf, spread, smooth, thinPath, ticks, tickWords } from "./curves.js";

/**
 * @typedef {object} Line
 * @property {string} key
 * @property {string} label
 * @property {number} number of its colour and dash
 * @property {number[]} xs rising
 * @property {(number|null)[]} ys
 * @property {boolean} [dots] points, joined by a dashed line: validation
 */
/**
 * @typedef {object} Drawing
 * @property {string} title
 * @property {Line[]} lines
 * @property {boolean} [log]
 * @property {number} [weight] of the smoothing; 0 draws the values alone
 * @property {number[]} [bands] where an epoch begins; every second one is shaded
 * @property {[number, number]} [range] of the y axis
 * @property {(x: number) => string} [writeX]
 * @property {(y: number|null) => string} [writeY]
 * @property {boolean} [endLabels] names at the ends of the lines, no legend
 */

export const LEFT = 56;
export const ruleFrom = 6;
const TOP = ruleFrom;
const BOTTOM = 20;
const RIGHT = 16;
const END_LABELS = 92;
const LABEL_GAP = 13;
const NARROWEST_BAND = 3;

/** Where the plot ends. @param {number} height */
export function ruleTo(height) {
  return height - BOTTOM;
}

/** @typedef {ReturnType<typeof scaleOf>} Scale */
/** @param {Drawing} drawing @param {number} width @param {number} height */
export function scaleOf({ lines, log = false, range, endLabels = false }, width, height) {
  const hasEnds = endLabels && width > 420;
  const right = width - (hasEnds ? END_LABELS : RIGHT);
  let [x0, x1] = [Infinity, -Infinity];
  for (const { xs } of lines) {
    if (!xs.length) continue;
    x0 = Math.min(x0, xs[0]);
    x1 = Math.max(x1, xs[xs.length - 1]);
  }
  if (x0 > x1) [x0, x1] = [0, 1];
  const [y0, y1] = range ?? rangeOf(lines.map((line) => line.ys), log);
  const view = (/** @type {number} */ y) => (log ? Math.log10(y) : y);
  const [v0, v1] = [view(y0), view(y1)];
  const bottom = height - BOTTOM;
  const perX = (right - LEFT) / (x1 - x0 || 1);
  const perY = (bottom - TOP) / (v1 - v0 || 1);
  return {
    right, log, hasEnds, xRange: [x0, x1],
    x: (/** @type {number} */ x) => LEFT + (x - x0) * perX,
    y: (/** @type {number} */ y) => bottom - (view(y) - v0) * perY,
    invert: (/** @type {number} */ px) => x0 + (px - LEFT) / perX,
    yTicks: log ? logTicks(y0, y1) : ticks(y0, y1, Math.max(2, Math.floor(height / 40))),
    xTicks: ticks(x0, x1, Math.max(2, Math.floor((right - LEFT) / 70))),
  };
}

/** Paths of one line, and the height of its end. @param {Line} line @param {Drawing} drawing @param {Scale} scale */
export function shapeOf(line, { weight = 0 }, scale) {
  const xs = line.xs.map(scale.x);
  const toY = (/** @type {number|null} */ y) =>
    y === null || !Number.isFinite(y) || (scale.log && y <= 0) ? null : scale.y(y);
  const raw = line.ys.map(toY);
  const isSmooth = weight > 0 && !line.dots;
  const ys = isSmooth ? smooth(line.ys, weight).map(toY) : raw;
  const known = /** @type {number[]} */ (ys.filter((y) => y !== null));
  return {
    line, faint: isSmooth ? thinPath(xs, raw) : "", main: thinPath(xs, ys),
    dots: line.dots ? dotsPath(xs, ys) : "", end: known.length ? known[known.length - 1] : null,
  };
}

export function makeLine() {
  const [faint, main, dots] = ["faint", "main", "dots"].map((name) => makeSvg("path", { class: `mgpu-line-${name}` }));
  const node = makeSvg("g");
  node.append(faint, main, dots);
  return {
    node,
    /** @param {ReturnType<typeof shapeOf>} shape */
    update(shape) {
      setAttribute(node, "class", `mgpu-line ${seriesClass(shape.line.number)} ${shape.line.dots ? "mgpu-validation" : ""}`);
      setAttribute(faint, "d", shape.faint);
      setAttribute(main, "d", shape.main);
      setAttribute(dots, "d", shape.dots);
    },
  };
}

/** @typedef {{ key: string, x: number, y: number, text: string, name: string }} Label */
export function makeText() {
  const node = makeSvg("text");
  return {
    node,
    /** @param {Label} label */
    update({ x, y, text, name }) {
      setAttribute(node, "x", x);
      setAttribute(node, "y", y);
      setAttribute(node, "class", name);
      setText(node, text);
    },
  };
}

/** @param {Scale} scale @param {Drawing} drawing @param {number} height @returns {Label[]} */
export function tickTexts(scale, drawing, height) {
  const ys = scale.yTicks.map((y, i) => ({
    key: `y${i}`, x: LEFT - 6, y: scale.y(y) + 4, text: tickWords(y), name: "mgpu-tick mgpu-tick-y",
  }));
  const xs = scale.xTicks.map((x, i) => ({
    key: `x${i}`, x: scale.x(x), y: height - 5, text: tickWords(x), name: "mgpu-tick mgpu-tick-x",
  }));
  return drawing.lines.length ? [...ys, ...xs] : [];
}

/** Names at the ends of the lines. @param {ReturnType<typeof shapeOf>[]} shapes @param {Drawing} drawing @param {Scale} scale @param {number} height @returns {Label[]} */
export function endTexts(shapes, { endLabels = false }, scale, height) {
  const ended = endLabels && scale.hasEnds ? shapes.filter(({ line, end }) => !line.dots && end !== null) : [];
  const placed = spread(ended.map(({ end }) => /** @type {number} */ (end) + 4), LABEL_GAP, height - BOTTOM);
  return ended.map(({ line }, i) => ({
    key: `end ${line.key}`, x: scale.right + 6, y: placed[i],
    text: line.label.length > 14 ? `${line.label.slice(0, 13)}…` : line.label,
    name: `mgpu-end ${seriesClass(line.number)}`,
  }));
}

/** Every second epoch as one path. @param {number[]} starts @param {Scale} scale @param {number} height */
export function bandsPath(starts, scale, height) {
  const edges = [...starts, scale.xRange[1]].map((x) => Math.min(scale.right, Math.max(LEFT, scale.x(x))));
  const mean = (edges[edges.length - 1] - edges[0]) / edges.length;
  if (starts.length < 2 || mean < NARROWEST_BAND) return "";
  let path = "";
  for (let i = 1; i + 1 < edges.length; i += 2) {
    path += `M${edges[i].toFixed(1)} ${TOP}H${edges[i + 1].toFixed(1)}V${height - BOTTOM}H${edges[i].toFixed(1)}z`;
  }
  return path;
}
