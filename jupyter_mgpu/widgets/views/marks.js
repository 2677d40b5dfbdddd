// @ts-check
/** What shows one value: the glyph of a state, meters, sparklines. */

import { gib, make, makeSvg, setAttribute, setText } from "./parts.js";

/** @typedef {{ value: number|null, reason: string|null }} Reading */
/** @typedef {{ used: number|null, total: number|null, reserved?: number|null, reason: string|null }} Memory */
/** @typedef {{ step_s: number, values: (number|null)[] }} Series */
/** @typedef {import("./parts.js").Translate} Translate */

const SPARK_WIDTH = 120;
const SPARK_HEIGHT = 24;
const SPARK_LABEL_MS = 10_000;

// Shapes of 12 x 12 units: a state is never told by its colour alone, and no font has to know them.
/** @type {Record<string, string>} */
const GLYPHS = {
  dot: "M6 1.5a4.5 4.5 0 1 0 .01 0z",
  play: "M3 1.5v9l7.5-4.5z",
  half: "M6 1.5a4.5 4.5 0 1 0 .01 0zm0 1.2v6.6a3.3 3.3 0 0 1 0-6.6z",
  warn: "M6 1l5.2 9.8H.8z",
  cross: "M2.6 1.2 6 4.6l3.4-3.4 1.4 1.4L7.4 6l3.4 3.4-1.4 1.4L6 7.4l-3.4 3.4-1.4-1.4L4.6 6 1.2 2.6z",
  square: "M2 2h8v8H2z",
  dashed: "M6 1a5 5 0 0 1 4.3 2.5l-1.2.7A3.6 3.6 0 0 0 6 2.4zM11 6a5 5 0 0 1-2.5 4.3l-.7-1.2A3.6 3.6 0 0 0 9.6 6zM6 11a5 5 0 0 1-4.3-2.5l1.2-.7A3.6 3.6 0 0 0 6 9.6zM1 6a5 5 0 0 1 2.5-4.3l.7 1.2A3.6 3.6 0 0 0 2.4 6z",
  clock: "M6 1a5 5 0 1 0 .01 0zm0 1.3a3.7 3.7 0 1 1-.01 0zM5.4 3.4h1.2v2.4l1.8 1-.6 1-2.4-1.3z",
  check: "M1.2 6.4 2.6 5 5 7.4 9.6 2 11 3.3 5.1 10.2z",
  slash: "M6 1a5 5 0 1 0 .01 0zm0 1.4c.7 0 1.4.2 2 .6L3 8A3.6 3.6 0 0 1 6 2.4zm0 7.2c-.7 0-1.4-.2-2-.6L9 4a3.6 3.6 0 0 1-3 5.6z",
};

/** Glyph and tone of every state; tones are classes of views.css. @type {Record<string, string[]>} */
const STATE_LOOKS = {
  ready: ["dot", "good"], idle: ["dot", "good"], ok: ["dot", "good"],
  busy: ["play", "active"], running: ["play", "active"],
  starting: ["half", "quiet"], stopping: ["half", "quiet"],
  degraded: ["warn", "warn"], unproven: ["warn", "warn"],
  stopped: ["square", "quiet"], ended: ["square", "quiet"], cancelled: ["slash", "quiet"],
  dead: ["cross", "bad"], lost: ["cross", "bad"], failed: ["cross", "bad"],
  stale: ["dashed", "quiet"], unknown: ["dashed", "quiet"],
  queued: ["clock", "quiet"], finished: ["check", "good"], proven: ["check", "good"],
};

/** Glyph and word of a state. */
export function makeState() {
  const path = makeSvg("path");
  const icon = makeSvg("svg", { viewBox: "0 0 12 12", class: "mgpu-glyph", "aria-hidden": "true" });
  icon.append(path);
  const word = make("span", "mgpu-state-word");
  const node = make("span", "mgpu-state", icon, word);
  return {
    node,
    /** @param {string} state @param {string} text */
    update(state, text) {
      const [glyph, tone] = STATE_LOOKS[state] ?? STATE_LOOKS.unknown;
      setAttribute(path, "d", GLYPHS[glyph]);
      setAttribute(icon, "class", `mgpu-glyph mgpu-${tone}`);
      setText(word, text);
    },
  };
}

/** A bar with its number: a share of a whole, or "n/a" with the reason. */
export function makeMeter() {
  const used = make("span", "mgpu-bar-used");
  const reserved = make("span", "mgpu-bar-reserved");
  const bar = make("span", "mgpu-bar", used, reserved);
  bar.setAttribute("role", "meter");
  bar.setAttribute("aria-valuemin", "0");
  bar.setAttribute("aria-valuemax", "100");
  const name = make("span", "mgpu-meter-name");
  const number = make("span", "mgpu-number");
  const node = make("span", "mgpu-meter", name, bar, number);
  return {
    node,
    /**
     * @param {{ name: string, label: string, percent: number|null, text: string, spoken: string, reservedPercent?: number }} shown
     */
    update({ name: words, label, percent, text, spoken, reservedPercent = 0 }) {
      setText(name, words);
      setText(number, text);
      setAttribute(bar, "aria-label", label);
      setAttribute(bar, "aria-valuenow", Math.round(percent ?? 0));
      setAttribute(bar, "aria-valuetext", spoken);
      setAttribute(node, "title", percent === null ? spoken : null);
      bar.classList.toggle("mgpu-bar-unknown", percent === null);
      used.style.transform = `scaleX(${share(percent)})`;
      const start = share(percent) * 100;
      reserved.style.transform = `translateX(${start}%) scaleX(${share(reservedPercent)})`;
    },
  };
}

/** @param {number|null} percent */
function share(percent) {
  return Math.min(1, Math.max(0, (percent ?? 0) / 100));
}

/**
 * What a meter shows of a percentage.
 * @param {Translate} t @param {string} name @param {string} label @param {Reading} reading
 */
export function percentMeter(t, name, label, reading) {
  const { value } = reading;
  if (value === null) return unavailable(t, name, label, reading.reason);
  const text = t("percent", { n: Math.round(value) });
  return { name, label, percent: value, text, spoken: text };
}

/**
 * What a meter shows of a memory. The driver's share is hatched.
 * @param {Translate} t @param {string} name @param {string} label @param {Memory} memory
 */
export function memoryMeter(t, name, label, memory) {
  const { used, total } = memory;
  if (used === null) return unavailable(t, name, label, memory.reason);
  if (total === null) {
    const text = t("memoryAlone", { used: gib(used) });
    return { name, label, percent: null, text, spoken: text };
  }
  const values = { used: gib(used), total: gib(total) };
  let spoken = t("memorySpoken", values);
  const reserved = memory.reserved || 0;
  if (reserved) spoken = t("reserved", { words: spoken, reserved: gib(reserved) });
  const percent = (100 * used) / total;
  const reservedPercent = (100 * reserved) / total;
  return { name, label, percent, text: t("memory", values), spoken, reservedPercent };
}

/** @param {Translate} t @param {string} name @param {string} label @param {string|null} reason */
function unavailable(t, name, label, reason) {
  const spoken = t("notAvailable", { reason: reason ?? t("noReason") });
  return { name, label, percent: null, text: t("na"), spoken };
}

/** A progress bar with its number. */
export function makeProgress() {
  const done = make("span", "mgpu-bar-used");
  const bar = make("span", "mgpu-bar mgpu-progress", done);
  bar.setAttribute("role", "progressbar");
  bar.setAttribute("aria-valuemin", "0");
  bar.setAttribute("aria-valuemax", "100");
  const number = make("span", "mgpu-number");
  const node = make("span", "mgpu-meter", bar, number);
  return {
    node,
    /** @param {string} label @param {number|null} progress 0 to 1 @param {string} text */
    update(label, progress, text) {
      setText(number, text);
      setAttribute(bar, "aria-label", label);
      setAttribute(bar, "aria-valuenow", progress === null ? null : Math.round(100 * progress));
      setAttribute(bar, "aria-valuetext", text);
      bar.classList.toggle("mgpu-bar-unknown", progress === null);
      done.style.transform = `scaleX(${share(progress === null ? 0 : 100 * progress)})`;
    },
  };
}

/** A line of the last readings, without axes. */
export function makeSparkline() {
  const line = makeSvg("path", { class: "mgpu-spark-line" });
  const area = makeSvg("path", { class: "mgpu-spark-area" });
  const node = makeSvg("svg", {
    viewBox: `0 0 ${SPARK_WIDTH} ${SPARK_HEIGHT}`,
    preserveAspectRatio: "none",
    class: "mgpu-spark",
    role: "img",
  });
  node.append(area, line);
  let labelledAt = -Infinity;
  return {
    node,
    /**
     * @param {(number|null)[]} values oldest first
     * @param {{ low?: number, high?: number, slots?: number, label(): string }} options `slots`:
     *   how many values fill the width; the newest is at the right
     */
    update(values, { low, high, slots = values.length, label }) {
      const { path, base } = sparkPath(values, slots, low, high);
      setAttribute(line, "d", path);
      setAttribute(area, "d", base);
      if (performance.now() - labelledAt < SPARK_LABEL_MS) return;
      labelledAt = performance.now();
      setAttribute(node, "aria-label", label());
    },
  };
}

/** @param {(number|null)[]} values @param {number} slots @param {number} [low] @param {number} [high] */
function sparkPath(values, slots, low, high) {
  const known = /** @type {number[]} */ (values.filter((value) => value !== null));
  const bottom = low ?? Math.min(...known);
  const height = (high ?? Math.max(...known)) - bottom || 1;
  const step = SPARK_WIDTH / Math.max(1, slots - 1);
  const inner = SPARK_HEIGHT - 3;
  let path = "";
  let base = "";
  let runStart = 0;
  let last = "";
  values.forEach((value, i) => {
    if (value === null) {
      if (last) base += `V${SPARK_HEIGHT}H${runStart}z`;
      last = "";
      return;
    }
    const x = +(SPARK_WIDTH - (values.length - 1 - i) * step).toFixed(1);
    const y = +(1.5 + inner * (1 - Math.min(1, Math.max(0, (value - bottom) / height)))).toFixed(1);
    const command = last ? "L" : "M";
    if (!last) runStart = x;
    path += `${command}${x} ${y}`;
    base += `${command}${x} ${y}`;
    last = path;
  });
  if (last) base += `V${SPARK_HEIGHT}H${runStart}z`;
  return { path, base };
}

/**
 * One sentence for a sparkline.
 * @param {Translate} t @param {string} label @param {Series} series @param {(value: number) => string} write
 */
export function sparkSentence(t, label, series, write) {
  const known = /** @type {number[]} */ (series.values.filter((value) => value !== null));
  if (!known.length) return t("sparkEmpty", { label });
  const span = spanWords(t, series.step_s * series.values.length);
  const [now, min, max] = [known[known.length - 1], Math.min(...known), Math.max(...known)];
  return t("sparkSummary", { label, span, now: write(now), min: write(min), max: write(max) });
}

/** @param {Translate} t @param {number} seconds */
export function spanWords(t, seconds) {
  const whole = Math.round(seconds);
  return whole < 60 ? t("seconds", { n: whole }) : t("minutes", { n: Math.round(whole / 60) });
}
