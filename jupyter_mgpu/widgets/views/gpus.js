// @ts-check
/** The view of all GPUs of a machine and of other hosts: how busy, how full, whose. A GPU opens to its history. */

import { gib, keyed, make, makeList, seriesClass, setAttribute, setShown, setText } from "./parts.js";
import { makeMeter, makeSparkline, makeState, memoryMeter, percentMeter, spanWords, sparkSentence } from "./marks.js";
import { makeLane, show } from "./frame.js";
import { CHART_WORDS, makeChart } from "./chart.js";

const GPUS_WORDS = {
  ...CHART_WORDS,
  title: "GPUs",
  count: ["{n} GPU", "{n} GPUs"],
  used: "{n} in use",
  gpu_ok: "ok", gpu_busy: "busy", gpu_idle: "idle", gpu_lost: "lost", gpu_stale: "stale {span}",
  busy: "GPU busy", gpuMemory: "memory", cpu: "CPU busy", hostMemory: "host memory", host: "This machine", hostStale: "stale {span}",
  meterLabel: "{what} of {gpu}",
  power: "{n} W", powerOf: "{n} / {limit} W", temperature: "{n} °C",
  watts: "power",
  slowed: "slowed: {words}",
  nobody: "nobody",
  userMemory: "{words} ({gib} GiB)",
  uuid: "device {uuid}",
  meaning: "Busy is the share of time in which anything ran on the GPU. It does not say how much of the GPU was at work.",
  busyChart: "GPU busy in percent, by minutes", memoryChart: "memory in GiB, by minutes",
  minutesAgo: "{n} min ago", now: "now",
  lostHint: "The driver lost this GPU: look at dmesg for Xid lines, then reset the GPU or restart the machine.",
  why: "{what}: {reason}",
  none: "No GPU is here. Pools still work on CPU engines: %parpool 2",
  troubleHint: "Pools still work on CPU engines: %parpool 2. mgpu.doctor() tells what is wrong with the driver.",
  newsLost: "{gpu} is lost", newsBack: "{gpu} is back", newsTrouble: "GPU readings: {words}",
};

/** @param {import("./frame.js").Frame} frame */
function buildGpus({ root, t }) {
  const state = makeState();
  const facts = make("span", "mgpu-facts");
  const trouble = make("p", "mgpu-trouble");
  const list = makeList("mgpu-lanes");
  const hint = make("p", "mgpu-hint");
  const hosts = make("div", "mgpu-hosts");
  root.append(make("div", "mgpu-head", make("strong", "mgpu-name", t("title")), state.node, facts), trouble, list, hint, hosts);
  const rows = keyed(list, (gpu) => gpu.uuid || gpu.label, () => makeGpu(t));
  const hostRows = keyed(hosts, (host) => host.name ?? "", () => makeHost(t));
  return {
    /** @param {any} now */
    draw(now) {
      /** @type {any[]} */
      const gpus = now.gpus;
      const worst = now.trouble ? "failed" : gpus.some((gpu) => gpu.state === "lost") ? "degraded" : "ok";
      setShown(state.node, gpus.length > 0 || Boolean(now.trouble));
      state.update(worst, t("count", { n: gpus.length }));
      setText(facts, gpus.length ? t("used", { n: gpus.filter((gpu) => gpu.users.length).length }) : "");
      setText(trouble, now.trouble ?? "");
      setShown(trouble, Boolean(now.trouble));
      rows.update(gpus);
      root.parentElement?.classList.toggle("mgpu-many", gpus.length > 8);
      setText(hint, gpus.length ? t("meaning") : t(now.trouble ? "troubleHint" : "none"));
      hostRows.update([now.host, ...(now.hosts ?? [])]);
    },
    /** @param {any} before @param {any} now */
    news(before, now) {
      const states = new Map(before.gpus.map((/** @type {any} */ gpu) => [gpu.uuid, gpu.state]));
      const words = now.gpus.flatMap((/** @type {any} */ { uuid, state: is, label }) => {
        const was = states.get(uuid);
        if (is === "lost" && was !== "lost") return [t("newsLost", { gpu: label })];
        return was === "lost" && is === "ok" ? [t("newsBack", { gpu: label })] : [];
      });
      if (now.trouble && !before.trouble) words.push(t("newsTrouble", { words: now.trouble }));
      return words;
    },
    destroy: () => rows.destroy(),
  };
}

/** CPU and memory of a host; of this machine where it has no name. @param {import("./parts.js").Translate} t */
function makeHost(t) {
  const name = make("span", "mgpu-lane-name");
  const trouble = make("span", "mgpu-facts");
  const [cpu, memory] = [makeMeter(), makeMeter()];
  return {
    node: make("div", "mgpu-host", name, cpu.node, memory.node, trouble),
    /** @param {any} host */
    update(host) {
      const label = (/** @type {string} */ what) => (host.name ? t("meterLabel", { what, gpu: host.name }) : what);
      setText(name, host.name ?? t("host"));
      cpu.update(percentMeter(t, t("cpu"), label(t("cpu")), host.cpu));
      memory.update(memoryMeter(t, t("hostMemory"), label(t("hostMemory")), host.memory));
      const age = host.state === "stale" ? t("hostStale", { span: spanWords(t, host.stale_s ?? 0) }) : "";
      setText(trouble, [age, host.trouble].filter(Boolean).join(": "));
    },
  };
}

/** @param {import("./parts.js").Translate} t */
function makeGpu(t) {
  const label = make("span", "mgpu-lane-name");
  const name = make("span", "mgpu-lane-device");
  const state = makeState();
  const slowed = makeState();
  const users = make("span", "mgpu-lane-task");
  const lane = makeLane(label, name, state.node, users, slowed.node);
  const [busy, memory, spark] = [makeMeter(), makeMeter(), makeSparkline()];
  const [heat, power] = [make("span", "mgpu-number"), make("span", "mgpu-number")];
  lane.side.append(busy.node, spark.node, memory.node, make("span", "mgpu-power", heat, power));
  const history = makeHistory(t);
  lane.body.append(history.node);
  /** @type {any} */
  let gpu = null;
  lane.details.addEventListener("toggle", () => gpu && lane.details.open && history.update(gpu));
  return {
    node: lane.node,
    /** @param {any} now */
    update(now) {
      gpu = now;
      setText(label, now.label);
      setText(name, now.name.replace(/^NVIDIA /, ""));
      setAttribute(name, "title", now.name);
      const [look, key] = lookOf(now);
      state.update(look, t(key, { span: spanWords(t, now.stale_s ?? 0) }));
      const words = now.throttle ?? [];
      slowed.update("degraded", t("slowed", { words: words.join(", ") }));
      setShown(slowed.node, words.length > 0);
      setText(users, now.users.map((/** @type {any} */ user) => user.words).join(", ") || t("nobody"));
      lane.node.classList.toggle("mgpu-lane-off", now.state !== "ok");
      setAttribute(spark.node, "class", `mgpu-spark ${seriesClass(now.index ?? 0)}`);
      drawReadings(now);
      if (lane.details.open) history.update(now);
    },
    destroy: () => history.destroy(),
  };

  /** @param {any} now */
  function drawReadings(now) {
    const busyLabel = t("meterLabel", { what: t("busy"), gpu: now.label });
    busy.update(percentMeter(t, t("busy"), busyLabel, now.utilization));
    spark.update(now.utilization_history.values, {
      low: 0, high: 100, slots: 120,
      label: () => sparkSentence(t, busyLabel, now.utilization_history, (n) => t("percent", { n: Math.round(n) })),
    });
    memory.update(memoryMeter(t, t("gpuMemory"), t("meterLabel", { what: t("gpuMemory"), gpu: now.label }), now.memory));
    setText(heat, temperatureText(t, now.temperature));
    setAttribute(heat, "title", now.temperature.reason);
    setText(power, powerText(t, now.power, now.power_limit));
    setAttribute(power, "title", now.power.reason);
  }
}

/** Glyph and word of a GPU. @param {any} gpu */
function lookOf(gpu) {
  if (gpu.state !== "ok") return [gpu.state, `gpu_${gpu.state}`];
  if (gpu.utilization.value === null) return ["ok", "gpu_ok"];
  return gpu.utilization.value > 0 ? ["busy", "gpu_busy"] : ["idle", "gpu_idle"];
}

/** @param {import("./parts.js").Translate} t @param {import("./marks.js").Reading} reading */
function temperatureText(t, { value }) {
  return value === null ? t("na") : t("temperature", { n: Math.round(value) });
}

/** @param {import("./parts.js").Translate} t @param {import("./marks.js").Reading} power @param {import("./marks.js").Reading} limit */
function powerText(t, power, limit) {
  if (power.value === null) return t("na");
  const n = Math.round(power.value);
  return limit.value === null ? t("power", { n }) : t("powerOf", { n, limit: Math.round(limit.value) });
}

/** What a GPU shows when it is open: its facts and two curves. @param {import("./parts.js").Translate} t */
function makeHistory(t) {
  const facts = make("p", "mgpu-facts");
  const charts = make("div", "mgpu-charts");
  const node = make("div", "mgpu-history", facts, charts);
  /** @type {ReturnType<typeof makeChart>[]} */
  let pair = [];
  return {
    node,
    /** @param {any} gpu */
    update(gpu) {
      if (!pair.length) {
        pair = [makeChart(t, 120), makeChart(t, 120)];
        charts.append(...pair.map((chart) => chart.node));
      }
      const holders = gpu.users.map((/** @type {any} */ { words, memory }) =>
        memory === null ? words : t("userMemory", { words, gib: gib(memory) }));
      const reasons = [["busy", gpu.utilization], ["gpuMemory", gpu.memory], ["watts", gpu.power]]
        .filter(([, reading]) => reading.reason)
        .map(([what, reading]) => t("why", { what: t(what), reason: reading.reason }));
      setText(facts, [
        gpu.why ?? (gpu.state === "lost" && t("lostHint")), temperatureText(t, gpu.temperature), powerText(t, gpu.power, gpu.power_limit),
        t("uuid", { uuid: gpu.uuid }), ...holders, ...reasons,
      ].filter(Boolean).join(" · "));
      pair[0].update(historyChart(t, gpu, "busyChart", gpu.utilization_history, [0, 100], "percent"));
      const total = gpu.memory.total ? gpu.memory.total / 2 ** 30 : undefined;
      pair[1].update(historyChart(t, gpu, "memoryChart", gpu.memory_history, total && [0, total], "memoryAlone"));
    },
    destroy: () => pair.forEach((chart) => chart.destroy()),
  };
}

/**
 * @param {import("./parts.js").Translate} t @param {any} gpu @param {string} title
 * @param {import("./marks.js").Series} series @param {any} range
 * @param {string} unit key of the words of a value
 */
function historyChart(t, gpu, title, series, range, unit) {
  const { values, step_s: step } = series;
  const write = (/** @type {number|null} */ y) =>
    y === null || y === undefined ? t("na") : t(unit, { n: Math.round(y), used: y.toFixed(1) });
  return {
    title: t(title), range,
    lines: [{
      key: "one", label: gpu.label, number: gpu.index ?? 0,
      xs: values.map((_, i) => ((i + 1 - values.length) * step) / 60),
      ys: values,
    }],
    writeX: (/** @type {number} */ x) => (x > -0.01 ? t("now") : t("minutesAgo", { n: (-x).toFixed(1) })),
    writeY: write,
  };
}

export default { render: (/** @type {any} */ host) => show(host, "gpus", GPUS_WORDS, buildGpus) };
