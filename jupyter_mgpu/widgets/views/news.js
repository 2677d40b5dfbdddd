// @ts-check
/** What a view says beside what it shows: answers, announcements, and that nothing comes any more. */

import { make, setShown, setText } from "./parts.js";

/** @typedef {import("./parts.js").Translate} Translate */
/** @typedef {import("./frame.js").Action} Action */

const ANNOUNCE_EVERY_MS = 10_000;
const ANNOUNCE_AT_ONCE = 3;
const ANSWER_MS = 10_000;
const SILENCE_MS = 20_000;

/** What does the same as a button, typed in a cell. @type {Record<string, string>} */
const TYPED = {
  restart: "%parpool restart {rank}", stop: "%parpool stop",
  cancel: "future.cancel()", request_stop: "future.request_stop()",
  stop_after_epoch: 'future.request_stop(after="epoch")',
};

/** Notice by our own clock that nothing comes any more; a hidden page expects nothing.
 * @param {() => void} onChange */
export function makeSilence(onChange) {
  const silence = {
    lastMs: Date.now(),
    expects: false,
    /** @param {boolean} expects */
    heard(expects) {
      silence.lastMs = Date.now();
      silence.expects = expects;
    },
    isLong: () => silence.expects && Date.now() - silence.lastMs > SILENCE_MS,
    destroy() {
      clearInterval(timer);
      document.removeEventListener("visibilitychange", onVisible);
    },
  };
  const onVisible = () => {
    silence.lastMs = Date.now();
  };
  const timer = setInterval(() => {
    if (!document.hidden && silence.isLong()) onChange();
  }, 5000);
  document.addEventListener("visibilitychange", onVisible);
  return silence;
}

/** The line that says what became of a button's press. @param {Translate} t */
export function makeAnswer(t) {
  const node = make("p", "mgpu-answer");
  setShown(node, false);
  let timer = 0;
  const tell = (/** @type {string} */ words) => {
    setText(node, words);
    setShown(node, words !== "");
  };
  return {
    node,
    /** @param {Action} action */
    expect({ action, rank }) {
      clearTimeout(timer);
      tell("");
      const type = TYPED[action]?.replace("{rank}", rank ?? "").trim();
      const words = type ? `${t("unanswered")} ${t("typed", { type })}` : t("unanswered");
      timer = setTimeout(() => tell(words), ANSWER_MS);
    },
    /** @param {{ ok: boolean, words: string }} done */
    take(done) {
      clearTimeout(timer);
      node.classList.toggle("mgpu-answer-bad", !done.ok);
      tell(done.words);
      return done.words;
    },
    destroy: () => clearTimeout(timer),
  };
}

/** One polite live region: at most one announcement per 10 s; what comes between is joined.
 * @param {Translate} t */
export function makeAnnouncer(t) {
  const node = make("div", "mgpu-unseen");
  node.setAttribute("role", "status");
  node.setAttribute("aria-live", "polite");
  /** @type {string[]} */
  let waiting = [];
  let lastMs = -Infinity;
  let timer = 0;
  function flush() {
    timer = 0;
    const more = waiting.length - ANNOUNCE_AT_ONCE;
    const words = waiting.slice(0, ANNOUNCE_AT_ONCE).join(". ");
    setText(node, more > 0 ? `${words}. ${t("more", { n: more })}` : words);
    waiting = [];
    lastMs = performance.now();
  }
  return {
    node,
    /** @param {string[]} texts */
    say(texts) {
      waiting.push(...texts.filter((text) => text && !waiting.includes(text)));
      if (!waiting.length || timer) return;
      timer = setTimeout(flush, Math.max(0, lastMs + ANNOUNCE_EVERY_MS - performance.now()));
    },
    destroy: () => clearTimeout(timer),
  };
}

