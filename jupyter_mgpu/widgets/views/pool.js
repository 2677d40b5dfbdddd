// @ts-check
/** The view of one pool: its engines, what they do, and the buttons to stop them. */

import { clock, grouped, keyed, make, makeList, setAttribute, setShown, setText } from "./parts.js";
import { makeMeter, makeSparkline, makeState, memoryMeter, percentMeter, sparkSentence } from "./marks.js";
import { makeAskingButton, makeButton, makeLane, offers, show } from "./frame.js";

const POOL_WORDS = {
  title: "Pool {name}",
  starting: "starting {alive}/{n}", ready: "ready {alive}/{n}", busy: "busy {alive}/{n}",
  degraded: "{alive} of {n} engines", stopped: "stopped",
  engine_starting: "starting", engine_idle: "idle", engine_busy: "busy", engine_stopping: "stopping",
  engine_dead: "dead", engine_ended: "ended",
  rank: "rank {rank}",
  proven: "proven", unproven: "not proven", unknown: "not yet proven", noProof: "A CPU engine has no GPU to prove.",
  provenLong: "The engine's own CUDA device has the identity of this GPU.",
  unprovenLong: "The engine's CUDA device could not be shown to be the GPU that it was given.",
  unknownLong: "The engine has not used CUDA yet, so its GPU is not proven.",
  queued: "{n} queued", running: "{n} running", since: "since {time}",
  gpuBusy: "GPU busy", cpuBusy: "CPU busy", held: "memory", gpuMemory: "GPU memory", cpuMemory: "memory of the process",
  meterLabel: "{what} of rank {rank}",
  interrupt: "Interrupt", restart: "Restart…", stop: "Stop…",
  doRestart: "Restart", doStop: "Stop the pool",
  askStop: "Stop pool {name}? {tasks} Its {n} engines end; variables on them are lost.",
  askRestart: "Restart pool {name}? {tasks} Its {n} engines start afresh; variables on them are lost.",
  askRestartOne: "Restart rank {rank}? What runs on it ends, and its variables are lost.",
  tasksLost: ["{n} task is running and ends.", "{n} tasks are running and end."],
  tasksNone: "No task is running.",
  process: "process {pid}", uuid: "device {uuid}",
  empty: "This pool has no engines. Start one with %parpool.",
  ended: "This pool is stopped. Start another one with %parpool.",
  newsState: "Pool {name}: {state}", newsDead: "Pool {name}: rank {rank} on {device} is dead",
};

/** @param {import("./frame.js").Frame} frame */
function buildPool({ root, t, send }) {
  /** @type {any} */
  let pool = null;
  const name = make("strong", "mgpu-name");
  const state = makeState();
  const facts = make("span", "mgpu-facts");
  const place = make("div", "mgpu-questions");
  const act = (/** @type {string} */ action, /** @type {number|null} */ rank = null) =>
    send({ action, pool: pool.name, rank }, placeOf(pool, action, rank));
  const asking = (/** @type {string} */ words, /** @type {string} */ confirm, /** @type {string} */ ask, /** @type {string} */ action) =>
    makeAskingButton({
      t, words: t(words), confirm: t(confirm), place, onConfirm: () => act(action),
      question: () => t(ask, { name: pool.name, n: pool.engines.length, tasks: lostTasks(t, pool) }),
    });
  const restart = asking("restart", "doRestart", "askRestart", "restart");
  const stop = asking("stop", "doStop", "askStop", "stop");
  const interrupt = makeButton(t("interrupt"), () => act("interrupt"));
  const buttons = make("span", "mgpu-buttons", interrupt, restart.button, stop.button);
  const list = makeList("mgpu-lanes");
  const hint = make("p", "mgpu-hint");
  root.append(make("div", "mgpu-head", name, state.node, facts, buttons), place, list, hint);
  const engines = keyed(list, (engine) => engine.rank, () => makeEngine(t, act));

  return {
    /** @param {any} now */
    draw(now) {
      pool = now;
      const alive = now.engines.filter((/** @type {any} */ engine) => engine.state !== "dead").length;
      setText(name, t("title", { name: now.name }));
      state.update(now.state, t(now.state, { alive, n: now.engines.length }));
      setText(facts, [
        t("running", { n: now.running }), t("queued", { n: grouped(now.queued) }),
        now.notebook && now.notebook.split("/").pop(), now.started && t("since", { time: clock(now.started) }),
      ].filter(Boolean).join(" · "));
      setAttribute(facts, "title", now.notebook);
      const isLive = !now.final && now.state !== "stopped";
      setShown(interrupt, offers(now, "interrupt", isLive));
      restart.update(offers(now, "restart", isLive));
      stop.update(offers(now, "stop", isLive));
      engines.update(now.engines.map((/** @type {any} */ engine) => ({ ...engine, isLive, controls: now.controls })));
      setText(hint, now.state === "stopped" ? t("ended") : now.engines.length ? "" : t("empty"));
      setShown(hint, hint.textContent !== "");
    },
    /** @param {any} before @param {any} now */
    news(before, now) {
      const dead = now.engines.filter((/** @type {any} */ engine, /** @type {number} */ i) =>
        engine.state === "dead" && before.engines[i]?.state !== "dead");
      const words = dead.map((/** @type {any} */ { rank, device }) => t("newsDead", { name: now.name, rank, device }));
      if (now.state === before.state || now.state === "busy" || before.state === "busy") return words;
      const alive = now.engines.length - dead.length;
      return [...words, t("newsState", { name: now.name, state: t(now.state, { alive, n: now.engines.length }) })];
    },
  };
}

/**
 * How a server finds what is to be done. Interrupting one rank is interrupting its task.
 * @param {any} pool @param {string} action @param {number|null} rank
 */
function placeOf({ place, engines }, action, rank) {
  if (!place || action !== "interrupt" || rank === null) return place;
  const task = engines.find((/** @type {any} */ engine) => engine.rank === rank)?.task_id;
  return task ? { ...place, task } : null;
}

/** @param {import("./parts.js").Translate} t @param {any} pool */
function lostTasks(t, pool) {
  return pool.running ? t("tasksLost", { n: pool.running }) : t("tasksNone");
}

/** @param {import("./parts.js").Translate} t @param {(action: string, rank: number) => void} act */
function makeEngine(t, act) {
  /** @type {any} */
  let engine = null;
  const rank = make("span", "mgpu-lane-name");
  const device = make("span", "mgpu-lane-device");
  const proof = makeState();
  const state = makeState();
  const task = make("span", "mgpu-lane-task");
  const lane = makeLane(rank, device, proof.node, state.node, task);
  const busy = makeMeter();
  const memory = makeMeter();
  const spark = makeSparkline();
  lane.side.append(busy.node, spark.node, memory.node);
  const facts = make("p", "mgpu-facts");
  const restart = makeAskingButton({
    t, words: t("restart"), confirm: t("doRestart"), place: lane.body,
    question: () => t("askRestartOne", { rank: engine.rank }),
    onConfirm: () => act("restart", engine.rank),
  });
  const interrupt = makeButton(t("interrupt"), () => act("interrupt", engine.rank));
  const buttons = make("span", "mgpu-buttons", interrupt, restart.button);
  lane.body.append(facts, buttons);
  return {
    node: lane.node,
    /** @param {any} now */
    update(now) {
      engine = now;
      const isGpu = now.what === "gpu";
      setText(rank, t("rank", { rank: now.rank }));
      setText(device, now.device);
      setShown(proof.node, isGpu);
      const proofKey = now.proven === null ? "unknown" : now.proven ? "proven" : "unproven";
      proof.update(proofKey, t(proofKey));
      state.update(now.state, t(`engine_${now.state}`));
      setText(task, now.task ?? "");
      const what = t(isGpu ? "gpuBusy" : "cpuBusy");
      const label = t("meterLabel", { what, rank: now.rank });
      busy.update(percentMeter(t, what, label, now.utilization));
      spark.update(now.utilization_history.values, {
        low: 0, high: 100, slots: 120,
        label: () => sparkSentence(t, label, now.utilization_history, (n) => t("percent", { n: Math.round(n) })),
      });
      const held = t(isGpu ? "gpuMemory" : "cpuMemory");
      memory.update(memoryMeter(t, t("held"), t("meterLabel", { what: held, rank: now.rank }), now.memory));
      setText(facts, [
        t(isGpu ? `${proofKey}Long` : "noProof"),
        now.pid && t("process", { pid: now.pid }), now.uuid && t("uuid", { uuid: now.uuid }),
        now.utilization.reason, now.memory.reason,
      ].filter(Boolean).join(" · "));
      setShown(interrupt, offers(now, "interrupt", now.isLive));
      restart.update(offers(now, "restart", now.isLive));
    },
  };
}

export default { render: (/** @type {any} */ host) => show(host, "pool", POOL_WORDS, buildPool) };
