// @ts-check
/** A chart of lines with axes: SVG whose nodes are made once, values under a pointer or arrow keys. */

import { grouped, keyed, make, makeList, makeSvg, metric, seriesClass, setAttribute, setShown, setText } from "./parts.js";
import { LEFT, bandsPath, endTexts, makeLine, makeText, ruleFrom, ruleTo, scaleOf, shapeOf, tickTexts } from "./plot.js";
import { placeOf } from "./curves.js";
import { makeButton } from "./frame.js";

/** @typedef {import("./plot.js").Drawing} Drawing */

const SUMMARY_MS = 10_000;

/** The words of charts, for the tables of views. */
export const CHART_WORDS = {
  step: "step {n}",
  cursor: "{title}: move along the steps",
  summary: "{title}: {lines}",
  line: "{label} from {first} to {last}, lowest {low}, highest {high}",
  noValues: "No values yet.",
  offLog: ["{n} value is not a number above 0 and has no place on the log axis.",
    "{n} values are not numbers above 0 and have no place on the log axis."],
  smoothing: "Smoothing", log: "Log axis",
  gaps: ["{n} value is not a finite number.", "{n} values are not finite numbers."],
};

/**
 * Make a chart. It draws when it is told to and when its width changes.
 * @param {import("./parts.js").Translate} t
 * @param {number} [height] pixels
 * @param {(shown: { line: import("./plot.js").Line, text: string }[], x: number|null) => void} [onMove] gets the
 *   values under the cursor, or the last ones
 */
export function makeChart(t, height = 180, onMove = undefined) {
  const title = make("span", "mgpu-chart-title");
  const where = make("span", "mgpu-chart-where");
  const legend = makeList("mgpu-legend");
  const bands = makeSvg("path", { class: "mgpu-bands" });
  const grid = makeSvg("path", { class: "mgpu-grid" });
  const lines = makeSvg("g");
  const labels = makeSvg("g");
  const rule = makeSvg("path", { class: "mgpu-rule" });
  const svg = makeSvg("svg", { class: "mgpu-plot", role: "img", height });
  svg.append(bands, grid, lines, rule, labels);
  const cursor = make("div", "mgpu-cursor");
  cursor.tabIndex = 0;
  cursor.setAttribute("role", "slider");
  const note = make("p", "mgpu-hint");
  const plot = make("div", "mgpu-plot-box", svg, cursor);
  const node = make("figure", "mgpu-chart", make("figcaption", "mgpu-chart-head", title, where), plot, legend, note);
  const shapes = keyed(/** @type {any} */ (lines), (shape) => shape.line.key, makeLine);
  const ticksY = keyed(/** @type {any} */ (labels), (tick) => tick.key, makeText);
  const entries = keyed(legend, (entry) => entry.line.key, makeEntry);
  /** @type {Drawing} */
  let drawing = { title: "", lines: [] };
  let width = 0;
  /** @type {number|null} */
  let at = null;
  let summarisedAt = -Infinity;
  let summarised = "";
  let scale = scaleOf(drawing, 300, height);

  function draw() {
    if (width < 80) return;
    scale = scaleOf(drawing, width, height);
    setAttribute(svg, "width", width);
    setText(title, drawing.title);
    const drawn = drawing.lines.map((line) => shapeOf(line, drawing, scale));
    shapes.update(drawn);
    setAttribute(grid, "d", scale.yTicks.map((y) => `M${LEFT} ${scale.y(y).toFixed(1)}H${scale.right}`).join(""));
    setAttribute(bands, "d", bandsPath(drawing.bands ?? [], scale, height));
    ticksY.update([...tickTexts(scale, drawing, height), ...endTexts(drawn, drawing, scale, height)]);
    const words = noteOf(t, drawing);
    setText(note, words);
    setShown(note, words !== "");
    cursor.style.left = `${LEFT}px`;
    cursor.style.width = `${scale.right - LEFT}px`;
    setAttribute(cursor, "aria-valuemin", scale.xRange[0]);
    setAttribute(cursor, "aria-valuemax", scale.xRange[1]);
    drawCursor();
    const look = `${drawing.title} ${drawing.log}`;
    if (look === summarised && performance.now() - summarisedAt < SUMMARY_MS) return;
    summarised = look;
    summarisedAt = performance.now();
    setAttribute(svg, "aria-label", summaryOf(t, drawing));
    setAttribute(cursor, "aria-label", t("cursor", { title: drawing.title }));
  }
  function drawCursor(isMoved = false) {
    const x = at === null ? scale.xRange[1] : Math.min(Math.max(at, scale.xRange[0]), scale.xRange[1]);
    const write = drawing.writeX ?? ((/** @type {number} */ n) => t("step", { n: grouped(n) }));
    setText(where, drawing.lines.length ? write(x) : "");
    setAttribute(rule, "d", at === null ? "" : `M${scale.x(x).toFixed(1)} ${ruleFrom}V${ruleTo(height)}`);
    const shown = drawing.lines.map((line) => {
      const place = placeOf(line.xs, x);
      return { line, text: (drawing.writeY ?? metric)(place < 0 ? null : line.ys[place]) };
    });
    onMove?.(shown, at);
    entries.update(drawing.endLabels ? [] : shown);
    // A value that changes by itself would be read out each time while the focus is here.
    if (!isMoved && cursor.matches(":focus")) return;
    setAttribute(cursor, "aria-valuenow", x);
    setAttribute(cursor, "aria-valuetext",
      [write(x), ...shown.map(({ line, text }) => `${line.label} ${text}`)].join(", "));
  }
  function point(/** @type {number|null} */ x) {
    at = x;
    drawCursor(true);
  }
  cursor.addEventListener("pointermove", (event) => {
    const x = scale.invert(LEFT + event.clientX - cursor.getBoundingClientRect().left);
    point(nearest(drawing.lines, x));
  });
  cursor.addEventListener("pointerleave", () => point(null));
  cursor.addEventListener("blur", () => point(null));
  cursor.addEventListener("keydown", (event) => {
    const to = stepOf(event.key, drawing.lines, at ?? scale.xRange[1]);
    if (to === undefined) return;
    event.preventDefault();
    point(to);
  });
  const observer = new ResizeObserver(() => {
    const found = Math.floor(plot.clientWidth);
    if (found === width) return;
    width = found;
    draw();
  });
  observer.observe(plot);
  return {
    node,
    /** @param {Drawing} next */
    update(next) {
      drawing = next;
      draw();
    },
    destroy: () => observer.disconnect(),
  };
}

/** A piece of a line, as it is drawn. */
export function makeSample() {
  const line = makeSvg("path", { d: "M1 6h22", class: "mgpu-line-main" });
  const dot = makeSvg("path", { d: "M12 6h0", class: "mgpu-line-dots" });
  const node = makeSvg("svg", { viewBox: "0 0 24 12", class: "mgpu-sample", "aria-hidden": "true" });
  node.append(line, dot);
  return {
    node,
    /** @param {number} number @param {boolean} isDotted */
    update(number, isDotted) {
      setAttribute(node, "class", `mgpu-sample mgpu-line ${seriesClass(number)} ${isDotted ? "mgpu-validation" : ""}`);
      setShown(dot, isDotted);
    },
  };
}

/** An entry of the legend: a piece of the line, its name, its value. */
function makeEntry() {
  const sample = makeSample();
  const label = make("span", "mgpu-legend-name");
  const value = make("span", "mgpu-number");
  const node = make("li", "mgpu-legend-entry", sample.node, label, value);
  return {
    node,
    /** @param {{ line: import("./plot.js").Line, text: string }} entry */
    update({ line, text }) {
      sample.update(line.number, Boolean(line.dots));
      setText(label, line.label);
      setAttribute(label, "title", line.label);
      setText(value, text);
    },
  };
}

/** What cannot be drawn, in words. @param {import("./parts.js").Translate} t @param {Drawing} drawing */
function noteOf(t, { lines, log = false }) {
  if (!lines.some((line) => line.xs.length)) return t("noValues");
  let [gaps, hidden] = [0, 0];
  for (const { ys } of lines) {
    for (const y of ys) {
      if (y === null || !Number.isFinite(y)) gaps++;
      else if (log && y <= 0) hidden++;
    }
  }
  return [gaps && t("gaps", { n: gaps }), hidden && t("offLog", { n: hidden })].filter(Boolean).join(" ");
}

/** One sentence per line. @param {import("./parts.js").Translate} t @param {Drawing} drawing */
function summaryOf(t, { title, lines, writeY = metric }) {
  const sentences = lines.map(({ label, ys }) => {
    const known = /** @type {number[]} */ (ys.filter((y) => y !== null && Number.isFinite(y)));
    if (!known.length) return `${label}: ${t("noValues")}`;
    let [low, high] = [known[0], known[0]];
    for (const y of known) {
      if (y < low) low = y;
      if (y > high) high = y;
    }
    const [first, last] = [writeY(known[0]), writeY(known[known.length - 1])];
    return t("line", { label, first, last, low: writeY(low), high: writeY(high) });
  });
  return t("summary", { title, lines: sentences.join("; ") || t("noValues") });
}

/** The step that is nearest to a place. @param {import("./plot.js").Line[]} lines @param {number} x */
function nearest(lines, x) {
  let best = null;
  for (const { xs } of lines) {
    const place = placeOf(xs, x);
    for (const found of [xs[place], xs[place + 1]]) {
      if (found !== undefined && (best === null || Math.abs(found - x) < Math.abs(best - x))) best = found;
    }
  }
  return best;
}

/** Where a key moves to; undefined if it does not move. @param {string} key @param {import("./plot.js").Line[]} lines @param {number} x */
function stepOf(key, lines, x) {
  if (key === "Escape") return null;
  const longest = lines.reduce((a, b) => (b.xs.length > a.length ? b.xs : a), /** @type {number[]} */ ([]));
  const jumps = /** @type {Record<string, number>} */ ({
    ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10,
    Home: -longest.length, End: longest.length,
  });
  if (!(key in jumps) || !longest.length) return undefined;
  const place = placeOf(longest, x) + jumps[key];
  return longest[Math.min(longest.length - 1, Math.max(0, place))];
}

/** Smoothing and the log axis. @param {import("./parts.js").Translate} t @param {() => void} onChange */
export function makeControls(t, onChange) {
  const slider = /** @type {HTMLInputElement} */ (make("input", "mgpu-slider"));
  Object.assign(slider, { type: "range", min: "0", max: "0.98", step: "0.02", value: "0.8" });
  const shown = make("span", "mgpu-number", slider.value);
  const log = makeButton(t("log"), () => {
    log.setAttribute("aria-pressed", String(log.getAttribute("aria-pressed") !== "true"));
    onChange();
  }, "mgpu-toggle");
  log.setAttribute("aria-pressed", "false");
  slider.addEventListener("input", () => {
    setText(shown, Number(slider.value).toFixed(2));
    onChange();
  });
  setText(shown, Number(slider.value).toFixed(2));
  setAttribute(slider, "aria-label", t("smoothing"));
  return {
    node: make("div", "mgpu-controls", make("label", "", t("smoothing"), slider, shown), log),
    weight: () => Number(slider.value),
    isLog: () => log.getAttribute("aria-pressed") === "true",
  };
}
