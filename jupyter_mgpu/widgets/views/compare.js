// @ts-check
/** The view of several trainings over one another, with the best so far. */

import { grouped, keyed, make, makeList, metric, setAttribute, setShown, setText } from "./parts.js";
import { makeState } from "./marks.js";
import { show } from "./frame.js";
import { baseName } from "./curves.js";
import { CHART_WORDS, makeChart, makeControls, makeSample } from "./chart.js";

const COMPARE_WORDS = {
  ...CHART_WORDS,
  title: "Trainings",
  queued: "queued", running: "running", finished: "finished", failed: "failed", cancelled: "cancelled",
  stopping: "stopping",
  count: ["{n} training", "{n} trainings"],
  metric: "Metric",
  at: "step {n}", atOf: "step {n} / {total}", last: "last {value}", value: "here {value}", dots: "Dots are measured on the validation data.",
  bestAt: "best {value} at step {step}", bestOfAll: "best so far",
  validation: "{name}, validation",
  none: "No training to compare yet.",
  newsFinished: "{name} is finished", newsFailed: "{name} failed", newsCancelled: "{name} is cancelled",
};

const LESS_IS_BETTER = /loss|error|perplexity|mse|mae/i;

/** @param {import("./frame.js").Frame} frame */
function buildCompare({ root, t }) {
  /** @type {any} */
  let state = null;
  /** @type {Map<string, number>} */
  const numbers = new Map(); // a training keeps its colour
  /** @type {Map<string, string>} */
  let texts = new Map(); // of each line, under the cursor
  /** @type {Set<string>} */
  const hidden = new Set();
  const facts = make("span", "mgpu-facts");
  const choice = /** @type {HTMLSelectElement} */ (make("select", "mgpu-select"));
  choice.setAttribute("aria-label", t("metric"));
  const controls = makeControls(t, () => state && drawCurves());
  const chart = makeChart(t, 280, (shown, x) => {
    texts = x === null ? new Map() : new Map(shown.map(({ line, text }) => [line.key, text]));
    drawRuns();
  });
  const list = makeList("mgpu-runs");
  const hint = make("p", "mgpu-hint", t("none"));
  const dots = make("p", "mgpu-hint");
  controls.node.prepend(make("label", "", t("metric"), choice));
  root.append(make("div", "mgpu-head", make("strong", "mgpu-name", t("title")), facts), controls.node, chart.node, dots, list, hint);
  const options = keyed(choice, (name) => name, makeOption);
  const runs = keyed(list, (run) => run.key, () => makeRun(t, (key, isShown) => {
    if (isShown) hidden.delete(key);
    else hidden.add(key);
    drawCurves();
  }));
  choice.addEventListener("change", () => drawCurves());

  function drawCurves() {
    const lines = runsOf(state.trainings, numbers).flatMap((run) => hidden.has(run.key) ? [] : linesOf(t, run, choice.value));
    chart.update({ title: choice.value, lines, weight: controls.weight(), log: controls.isLog(), endLabels: true });
    setText(dots, lines.some((line) => line.dots) ? t("dots") : "");
    setShown(dots, dots.textContent !== "");
    drawRuns();
  }
  function drawRuns() {
    const all = runsOf(state.trainings, numbers);
    const winner = bestOf(all);
    runs.update(all.map((run) => {
      const line = linesOf(t, run, choice.value)[0];
      const here = line && texts.get(line.key);
      const value = here ?? metric(line ? line.ys[line.ys.length - 1] : null);
      return { ...run, last: t(here === undefined ? "last" : "value", { value }), isBest: run.key === winner?.key, isShown: !hidden.has(run.key) };
    }));
  }
  return {
    /** @param {any} next */
    draw(next) {
      state = next;
      const isEmpty = !next.trainings.length;
      setText(facts, isEmpty ? "" : t("count", { n: next.trainings.length }));
      for (const [node, isShown] of /** @type {[HTMLElement, boolean][]} */ ([[hint, isEmpty], [controls.node, !isEmpty], [chart.node, !isEmpty]])) setShown(node, isShown);
      options.update(next.metrics);
      drawCurves();
    },
    /** @param {any} before @param {any} next */
    news(before, next) {
      const keys = /** @type {Record<string, string>} */ ({ finished: "newsFinished", failed: "newsFailed", cancelled: "newsCancelled" });
      const states = new Map(runsOf(before.trainings, numbers).map(({ key, training }) => [key, training.state]));
      return runsOf(next.trainings, numbers).flatMap(({ key, training: { name, state: is } }) =>
        states.has(key) && states.get(key) !== is && keys[is] ? [t(keys[is], { name })] : []);
    },
    expectsNews: (/** @type {any} */ next) => next.trainings.some((/** @type {any} */ one) => one.state === "running"),
    destroy: () => chart.destroy(),
  };
}

/** @typedef {{ key: string, number: number, training: any }} Run */
/** Trainings with a key and a colour that stay. @param {any[]} trainings @param {Map<string, number>} numbers @returns {Run[]} */
function runsOf(trainings, numbers) {
  /** @type {Map<string, number>} */
  const seen = new Map();
  return trainings.map((training) => {
    const name = String(training.task_id ?? training.name);
    const count = (seen.get(name) ?? 0) + 1;
    seen.set(name, count);
    const key = `${name} ${count}`;
    if (!numbers.has(key)) numbers.set(key, numbers.size);
    return { key, number: numbers.get(key) ?? 0, training };
  });
}

/** @param {import("./parts.js").Translate} t @param {Run} run @param {string} chosen @returns {import("./plot.js").Line[]} */
function linesOf(t, { key, number, training }, chosen) {
  return curvesOf(training, chosen).map(({ name, validation, steps, values }) => ({
    key: `${key} ${name} ${validation}`, number, xs: steps, ys: values,
    label: validation && name !== chosen ? t("validation", { name: training.name }) : training.name, dots: validation,
  }));
}

/** @param {any} training @param {string} chosen @returns {any[]} */
function curvesOf(training, chosen) {
  return training.curves.filter((/** @type {any} */ { name, validation }) =>
    name === chosen || (validation && baseName(name) === chosen));
}

/** The run with the best value, if they all measure it by the same name. @param {Run[]} runs */
function bestOf(runs) {
  const measured = runs.filter(({ training }) => training.best);
  const names = new Set(measured.map(({ training }) => training.best.name));
  if (measured.length < 2 || names.size !== 1) return null;
  const [name] = names;
  // Where a curve goes below its best value, more is better.
  const isMoreBetter = !LESS_IS_BETTER.test(name) && measured.some(({ training }) => training.curves.some((/** @type {any} */ curve) =>
    curve.name === name && curve.values.some((/** @type {any} */ value) => value !== null && value < training.best.value)));
  const sign = isMoreBetter ? -1 : 1;
  return measured.reduce((a, b) => (sign * b.training.best.value < sign * a.training.best.value ? b : a));
}

/** @param {string} name */
function makeOption(name) {
  const node = make("option", "", name);
  return { node, update() {} };
}

/** @param {import("./parts.js").Translate} t @param {(key: string, isShown: boolean) => void} onToggle */
function makeRun(t, onToggle) {
  let key = "";
  const box = /** @type {HTMLInputElement} */ (make("input"));
  box.type = "checkbox";
  box.addEventListener("change", () => onToggle(key, box.checked));
  const sample = makeSample();
  const name = make("span", "mgpu-lane-name");
  const state = makeState();
  const [step, last, best] = [make("span", "mgpu-number"), make("span", "mgpu-number"), make("span", "mgpu-number")];
  const star = makeState();
  const node = make("li", "mgpu-run", make("label", "mgpu-run-name", box, sample.node, name), state.node, step, last, best, star.node);
  return {
    node,
    /** @param {Run & { last: string, isBest: boolean, isShown: boolean }} run */
    update({ key: its, number, training, last: words, isBest, isShown }) {
      key = its;
      box.checked = isShown;
      sample.update(number, false);
      setText(name, training.name);
      setAttribute(name, "title", training.name);
      state.update(training.state, t(training.state));
      const n = grouped(training.step ?? 0);
      setText(step, training.steps ? t("atOf", { n, total: grouped(training.steps) }) : t("at", { n }));
      setText(last, words);
      setText(best, training.best ? t("bestAt", { value: metric(training.best.value), step: grouped(training.best.step) }) : "");
      setShown(star.node, isBest);
      star.update("finished", t("bestOfAll"));
    },
  };
}

export default { render: (/** @type {any} */ host) => show(host, "compare", COMPARE_WORDS, buildCompare) };
