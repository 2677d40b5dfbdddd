// @ts-check
/** The view of one training: how the network learns, how far it is, and the buttons to end it. */

import { clock, duration, grouped, keyed, make, metric, setAttribute, setShown, setText } from "./parts.js";
import { makeProgress, makeState } from "./marks.js";
import { makeAskingButton, makeButton, makeDiary, offers, show } from "./frame.js";
import { CHART_WORDS, makeChart, makeControls } from "./chart.js";
import { chartGroups } from "./curves.js";

const TRAINING_WORDS = {
  ...CHART_WORDS,
  title: "{name}",
  queued: "queued", running: "running", finished: "finished", failed: "failed", cancelled: "cancelled",
  stopping: "stopping",
  epoch: "Epoch", stepFact: "Step", elapsed: "Elapsed", left: "Left", rate: "Learning rate",
  speed: "Samples/s", hardware: "Hardware", best: "Best", began: "Began", training: "training", validation: "validation",
  of: "{n} / {total}", bestAt: "{name} {value} at step {step}",
  progress: "Progress of {name}", done: "{n} %",
  stopAfterEpoch: "Stop after epoch", stopNow: "Stop now",
  stopAfterEpochHint: "Ends after this epoch and keeps the network.", stopNowHint: "Ends after this step and keeps the network.",
  cancel: "Cancel…", doCancel: "Cancel the training", askCancel: "Cancel {name}? The network that it has trained so far is lost.",
  askCancelQueued: "Cancel {name}? It has not begun.",
  diaryTitle: "What it printed", diary: "Diary of {name}",
  noCurves: "Nothing is measured yet.",
  newsFinished: "{name} is finished", newsFailed: "{name} failed", newsCancelled: "{name} is cancelled",
};

const ENDED = ["finished", "failed", "cancelled"];

/** @param {import("./frame.js").Frame} frame */
function buildTraining({ root, t, send }) {
  /** @type {any} */
  let training = null;
  const name = make("strong", "mgpu-name");
  const state = makeState();
  const act = (/** @type {string} */ action) => send({ action, task: training.task_id ?? training.id }, training.place);
  const afterEpoch = makeButton(t("stopAfterEpoch"), () => act("stop_after_epoch"));
  const now = makeButton(t("stopNow"), () => act("request_stop"));
  afterEpoch.title = t("stopAfterEpochHint");
  now.title = t("stopNowHint");
  const place = make("div", "mgpu-questions");
  const cancel = makeAskingButton({
    t, words: t("cancel"), confirm: t("doCancel"), place, onConfirm: () => act("cancel"),
    question: () => t(training.state === "queued" ? "askCancelQueued" : "askCancel", { name: training.name }),
  });
  const progress = makeProgress();
  const error = make("p", "mgpu-error");
  const facts = make("dl", "mgpu-table");
  const controls = makeControls(t, () => training && drawCharts());
  const charts = make("div", "mgpu-charts");
  const notes = make("p", "mgpu-hint");
  const diary = makeDiary();
  const details = /** @type {HTMLDetailsElement} */ (make("details", "mgpu-lane-main", make("summary", "mgpu-lane-words", t("diaryTitle")), diary.node));
  root.append(
    make("div", "mgpu-head", name, state.node, make("span", "mgpu-buttons", afterEpoch, now, cancel.button)),
    place, progress.node, error, facts, controls.node, charts, notes, details,
  );
  const rows = keyed(facts, (fact) => fact[0], makeFact);
  const plots = keyed(charts, (group) => group.title, () => makeChart(t, 200));

  function drawDiary() {
    diary.update(t("diary", { name: training.name }), training.diary ?? "");
  }
  details.addEventListener("toggle", () => details.open && drawDiary());
  function drawCharts() {
    const names = { training: t("training"), validation: t("validation") };
    plots.update(chartGroups(training.curves, names).map((group) => ({
      ...group, weight: controls.weight(), log: controls.isLog(), bands: training.epoch_steps,
    })));
  }
  return {
    /** @param {any} next */
    draw(next) {
      training = next;
      setText(name, t("title", { name: next.name }));
      state.update(next.state, t(next.state) + (next.outcome ? `: ${next.outcome}` : ""));
      const isLive = !next.final && !ENDED.includes(next.state);
      const isRunning = isLive && next.state !== "queued";
      setShown(afterEpoch, offers(next, "stop_after_epoch", isRunning));
      setShown(now, offers(next, "request_stop", isRunning));
      cancel.update(offers(next, "cancel", isLive && Boolean(next.controls)));
      const share = next.steps ? (next.step ?? 0) / next.steps : null;
      setShown(progress.node, share !== null && !ENDED.includes(next.state));
      progress.update(t("progress", { name: next.name }), share, t("done", { n: Math.floor(100 * (share ?? 0)) }));
      setText(error, next.error ?? "");
      setShown(error, Boolean(next.error));
      rows.update(factsOf(t, next));
      setShown(controls.node, next.curves.length > 0);
      setText(notes, [!next.curves.length && t("noCurves"), ...next.notes].filter(Boolean).join(" "));
      setShown(notes, notes.textContent !== "");
      drawCharts();
      setShown(details, Boolean(next.diary));
      if (details.open) drawDiary();
    },
    /** @param {any} before @param {any} next */
    news(before, next) {
      const keys = /** @type {Record<string, string>} */ ({ finished: "newsFinished", failed: "newsFailed", cancelled: "newsCancelled" });
      return before.state !== next.state && keys[next.state] ? [t(keys[next.state], { name: next.name })] : [];
    },
    expectsNews: (/** @type {any} */ next) => next.state === "running",
    destroy: () => plots.destroy(),
  };
}

/**
 * The pairs of the table, each in its place; what the kernel does not know is left out.
 * @param {import("./parts.js").Translate} t @param {any} training
 */
function factsOf(t, training) {
  const { epoch, epochs, step, steps, eta_s: left, samples_per_s: speed, rate, best, started, environment } = training;
  const of = (/** @type {number} */ n, /** @type {number|null} */ total) =>
    total === null ? grouped(n) : t("of", { n: grouped(n), total: grouped(total) });
  const isKnown = (/** @type {any} */ value) => value !== null && value !== undefined;
  /** @type {[string, any, () => string, string?][]} */
  const facts = [
    ["epoch", epoch, () => of(epoch, epochs)],
    ["stepFact", step, () => of(step, steps)],
    ["elapsed", training.elapsed_s, () => duration(training.elapsed_s)],
    ["left", left, () => duration(left)],
    ["speed", speed, () => grouped(speed)],
    ["rate", rate, () => metric(rate)],
    ["best", best, () => t("bestAt", { name: best.name, value: metric(best.value), step: grouped(best.step) }), "mgpu-fact-wide"],
    ["began", started, () => clock(started)],
    ["hardware", environment, () => environment],
  ];
  return facts.filter(([, value]) => isKnown(value)).map(([key, , write, width]) => [t(key), write(), width ?? ""]);
}

function makeFact() {
  const term = make("dt");
  const value = make("dd");
  const node = make("div", "mgpu-fact", term, value);
  return {
    node,
    /** @param {string[]} fact */
    update([words, text, width = ""]) {
      setAttribute(node, "class", `mgpu-fact ${width}`);
      setText(term, words);
      setText(value, text);
    },
  };
}

export default { render: (/** @type {any} */ host) => show(host, "training", TRAINING_WORDS, buildTraining) };
