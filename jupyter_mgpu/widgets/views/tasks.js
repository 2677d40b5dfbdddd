// @ts-check
/** The view of all tasks: what runs, how far, how good; a task opens to its diary. */

import { clock, duration, grouped, keyed, make, makeList, metric, setAttribute, setShown, setText } from "./parts.js";
import { makeProgress, makeSparkline, makeState } from "./marks.js";
import { makeAskingButton, makeButton, makeDiary, makeLane, offers, show } from "./frame.js";

const TASKS_WORDS = {
  title: "Tasks",
  queued: "queued", running: "running", finished: "finished", failed: "failed", cancelled: "cancelled",
  stopping: "stopping",
  countOf: "{n} {state}",
  rank: "rank {rank}", pool: "pool {name}",
  progress: "Progress of {name}",
  percentEta: "{n} %", eta: "{time} left", took: "took {time}", waits: "waits since {time}",
  ended: "ended {time}",
  metric: "{name} {value}",
  curve: "{name} of {task}: first {first}, now {last}, lowest {low}, highest {high}",
  stop: "Stop", cancel: "Cancel…", doCancel: "Cancel the task",
  stopHint: "Asks the task to stop by itself; what it returns is kept.",
  askCancel: "Cancel {name}? What it has done so far is lost.",
  askCancelQueued: "Cancel {name}? It has not begun.",
  diary: "Diary of {name}", noDiary: "It has printed nothing.", diaryBelow: "What it prints is below.",
  hidden: ["{n} older task is not shown.", "{n} older tasks are not shown."],
  none: "No task yet. Start one with mgpu.parfeval(function) or a cell with %%parfeval.",
  newsFinished: "{name} is finished", newsFailed: "{name} failed", newsCancelled: "{name} is cancelled",
};

const STATES = ["running", "queued", "finished", "failed", "cancelled"];
const METRICS_SHOWN = 3;

/** @param {import("./frame.js").Frame} frame */
function buildTasks({ root, t, send }) {
  const counts = make("span", "mgpu-facts");
  const list = makeList("mgpu-lanes mgpu-scroll");
  const hint = make("p", "mgpu-hint");
  root.append(make("div", "mgpu-head", make("strong", "mgpu-name", t("title")), counts), list, hint);
  const rows = keyed(list, (task) => task.id, () => makeTask(t, send));
  return {
    /** @param {any} now */
    draw(now) {
      setText(counts, STATES.filter((state) => now.counts[state])
        .map((state) => t("countOf", { n: grouped(now.counts[state]), state: t(state) })).join(" · "));
      rows.update(now.tasks.map((/** @type {any} */ task) => ({ ...task, isLive: !now.final, at: now.at })));
      setText(hint, now.tasks.length ? (now.hidden ? t("hidden", { n: now.hidden }) : "") : t("none"));
      setShown(hint, hint.textContent !== "");
    },
    /** @param {any} before @param {any} now */
    news(before, now) {
      const states = new Map(before.tasks.map((/** @type {any} */ task) => [task.id, task.state]));
      const keys = /** @type {Record<string, string>} */ ({ finished: "newsFinished", failed: "newsFailed", cancelled: "newsCancelled" });
      return now.tasks.flatMap((/** @type {any} */ { id, name, state }) =>
        states.has(id) && states.get(id) !== state && keys[state] ? [t(keys[state], { name })] : []);
    },
    expectsNews: (/** @type {any} */ now) => Boolean(now.counts.running),
  };
}

/** @param {import("./parts.js").Translate} t @param {import("./frame.js").Frame["send"]} send */
function makeTask(t, send) {
  /** @type {any} */
  let task = null;
  const act = (/** @type {string} */ action) => send({ action, task: task.id }, task.place);
  const state = makeState();
  const name = make("span", "mgpu-lane-name");
  const where = make("span", "mgpu-lane-device");
  const times = make("span", "mgpu-lane-times");
  const error = make("span", "mgpu-lane-error");
  const lane = makeLane(state.node, name, where, times, error);
  const progress = makeProgress();
  const metrics = make("span", "mgpu-metrics");
  const spark = makeSparkline();
  const stop = makeButton(t("stop"), () => act("request_stop"));
  stop.title = t("stopHint");
  const place = make("div", "mgpu-questions");
  const cancel = makeAskingButton({
    t, words: t("cancel"), confirm: t("doCancel"), place,
    question: () => t(task.state === "queued" ? "askCancelQueued" : "askCancel", { name: task.name }),
    onConfirm: () => act("cancel"),
  });
  lane.side.append(progress.node, spark.node, metrics);
  lane.node.append(make("span", "mgpu-buttons", stop, cancel.button), place);
  const full = make("p", "mgpu-error");
  const diary = makeDiary();
  lane.body.append(full, diary.node);
  lane.details.addEventListener("toggle", () => lane.details.open && drawDiary());
  return {
    node: lane.node,
    /** @param {any} now */
    update(now) {
      task = now;
      state.update(now.state, t(now.state));
      setText(name, now.name);
      setAttribute(name, "title", now.name);
      setText(where, [now.rank !== null && t("rank", { rank: now.rank }), now.pool && t("pool", { name: now.pool })]
        .filter(Boolean).join(" · "));
      setText(times, timesOf(t, now));
      const words = now.error ?? "";
      setText(error, words.trim().split("\n")[0]);
      setShown(error, words !== "");
      setText(full, words);
      setShown(full, words !== "");
      const isRunning = now.state === "running" || now.state === "stopping";
      setShown(progress.node, isRunning && now.progress !== null);
      const percent = t("percentEta", { n: Math.floor(100 * (now.progress ?? 0)) });
      progress.update(t("progress", { name: now.name }), now.progress, percent);
      setText(metrics, Object.entries(now.metrics ?? {}).slice(0, METRICS_SHOWN)
        .map(([key, value]) => t("metric", { name: key, value: metric(/** @type {number} */ (value), key) })).join("  "));
      drawCurve(now);
      if (lane.details.open) drawDiary();
      setShown(stop, now.isLive && offers(now, "request_stop", isRunning));
      cancel.update(now.isLive && offers(now, "cancel", isRunning || now.state === "queued"));
    },
  };

  function drawDiary() {
    const text = task.diary ?? t("diaryBelow");
    diary.update(t("diary", { name: task.name }), text || t("noDiary"));
  }
  /** @param {any} now */
  function drawCurve({ curve, name: called }) {
    setShown(spark.node, Boolean(curve && curve.values.length > 1));
    if (!curve || !curve.values.length) return;
    const known = curve.values.filter((/** @type {any} */ value) => value !== null);
    spark.update(curve.values, {
      label: () => t("curve", {
        name: curve.name, task: called, first: metric(known[0]), last: metric(known[known.length - 1]),
        low: metric(Math.min(...known)), high: metric(Math.max(...known)),
      }),
    });
  }
}

/** When, in words. @param {import("./parts.js").Translate} t @param {any} task */
function timesOf(t, task) {
  if (task.state === "queued") return t("waits", { time: clock(task.created) });
  if (task.finished !== null && task.finished !== undefined) {
    const ended = t("ended", { time: clock(task.finished) });
    return task.started ? `${t("took", { time: duration(task.finished - task.started) })} · ${ended}` : ended;
  }
  const left = task.eta_s === null || task.eta_s === undefined ? [] : [t("eta", { time: duration(task.eta_s) })];
  return [task.started && duration(task.at - task.started), ...left].filter(Boolean).join(" · ");
}

export default { render: (/** @type {any} */ host) => show(host, "tasks", TASKS_WORDS, buildTasks) };
