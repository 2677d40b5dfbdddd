// @ts-check
/** What surrounds every view: notices, answers, announcements, lanes, buttons that ask first. */

import { clock, make, setAttribute, setShown, setText, translator } from "./parts.js";
import { spanWords } from "./marks.js";
import { askServer } from "./request.js";

/** @typedef {import("./parts.js").Translate} Translate */
/**
 * @typedef {object} Model what a host gives
 * @property {(name: string) => any} get
 * @property {(event: string, callback: (...args: any[]) => void) => void} on
 * @property {(event: string, callback: (...args: any[]) => void) => void} off
 * @property {(message: object) => void} send
 */
/**
 * @typedef {object} Frame what a view builds in
 * @property {HTMLElement} root
 * @property {Translate} t
 * @property {(action: Action, place?: import("./request.js").Place|null) => void} send asks for something:
 *   the server of the page where that can be, else the kernel
 */
/** @typedef {{ action: string, [name: string]: any }} Action */

const VERSION = 1;
const ANNOUNCE_EVERY_MS = 10_000;
const ANNOUNCE_AT_ONCE = 3;
const ANSWER_MS = 10_000;
const SILENCE_MS = 20_000;

const PACKED = new Set(["values", "steps", "epoch_steps"]);
const GAP = "-";

/** What does the same as a button, typed in a cell. @type {Record<string, string>} */
const TYPED = {
  restart: "%parpool restart {rank}", stop: "%parpool stop",
  cancel: "future.cancel()", request_stop: "future.request_stop()",
  stop_after_epoch: 'future.request_stop(after="epoch")',
};

/**
 * Show a view and keep it up to date.
 * @param {{ model: Model, el: HTMLElement }} host
 * @param {string} kind
 * @param {Record<string, string|string[]>} table the view's words
 * @param {(frame: Frame) => { draw(state: any): void, news?(before: any, state: any): string[],
 *   expectsNews?(state: any): boolean, destroy?(): void }} build
 * @returns {() => void} takes it away
 */
export function show({ model, el }, kind, table, build) {
  const t = translator(model, table);
  const notice = make("p", "mgpu-notice");
  const answer = makeAnswer(t);
  const content = make("div", "mgpu-content");
  const announcer = makeAnnouncer(t);
  const root = make("div", `mgpu mgpu-${kind}`, notice, content, answer.node, announcer.node);
  root.setAttribute("role", "group");
  const view = build({
    root: content,
    t,
    async send(action, place) {
      answer.expect(action);
      const done = await askServer(action, place);
      if (!done) model.send(action);
      else announcer.say([answer.take({ ...done, words: done.words || t("unanswered") })]);
    },
  });
  const silence = makeSilence(() => drawNotice());
  /** @type {any} */
  let shown = null;
  let asked = 0;

  function drawNotice() {
    const words = noticeOf(t, shown, silence.isLong() ? silence.lastMs : null);
    setText(notice, words);
    setShown(notice, words !== "");
  }
  function draw() {
    asked = 0;
    const state = unpacked(model.get("state"));
    if (state && state.kind) {
      silence.heard(!state.final && (view.expectsNews?.(state) ?? true));
      setAttribute(root, "aria-label", t("title", { name: state.name ?? "" }));
      root.classList.toggle("mgpu-final", Boolean(state.final));
      view.draw(state);
      if (shown && view.news) announcer.say(view.news(shown, state));
      shown = state;
    }
    setShown(content, shown !== null);
    drawNotice();
  }
  // Changes between two frames are drawn once; a hidden page draws nothing.
  const drawSoon = () => {
    asked ||= requestAnimationFrame(draw);
  };
  const hear = (/** @type {any} */ message) => {
    if (message && message.done) announcer.say([answer.take(message.done)]);
  };
  draw();
  model.on("change:state", drawSoon);
  model.on("msg:custom", hear);
  el.append(root);
  return () => {
    model.off("change:state", drawSoon);
    model.off("msg:custom", hear);
    cancelAnimationFrame(asked);
    for (const part of [silence, answer, announcer, view]) part.destroy?.();
    root.remove();
  };
}

/**
 * Read a state as a file holds it: lists of numbers are texts there, since each number of a list would
 * have a line of its own.
 * @param {any} value @param {boolean} [isPacked]
 * @returns {any}
 */
function unpacked(value, isPacked = Boolean(value?.packed)) {
  if (!isPacked || value === null || typeof value !== "object") return value;
  if (Array.isArray(value)) return value.map((one) => unpacked(one, true));
  return Object.fromEntries(Object.entries(value).map(([name, one]) => [
    name, PACKED.has(name) && typeof one === "string" ? numbersOf(one) : unpacked(one, true),
  ]));
}

/** @param {string} text */
function numbersOf(text) {
  return text ? text.split(",").map((part) => (part === GAP ? null : Number(part))) : [];
}

/** @param {Translate} t @param {any} state @param {number|null} silentSince ms */
function noticeOf(t, state, silentSince) {
  if (!state) return t("waiting");
  if (state.notice) return state.notice;
  if (state.version > VERSION) return t("newer");
  if (silentSince === null) return "";
  const span = spanWords(t, (Date.now() - silentSince) / 1000);
  return t("silent", { span, time: clock(silentSince / 1000) });
}

/** Notice by our own clock that nothing comes any more; a hidden page expects nothing.
 * @param {() => void} onChange */
function makeSilence(onChange) {
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
function makeAnswer(t) {
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
function makeAnnouncer(t) {
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

/**
 * A lane: a line of words that opens, what is beside it, and a place for questions.
 * @param {...Node} words of the line
 */
export function makeLane(...words) {
  const body = make("div", "mgpu-lane-body");
  const summary = make("summary", "mgpu-lane-words", ...words);
  const details = /** @type {HTMLDetailsElement} */ (make("details", "mgpu-lane-main", summary, body));
  const side = make("div", "mgpu-lane-side");
  const node = make("li", "mgpu-lane", details, side);
  return { node, details, summary, body, side };
}

/** @param {string} words @param {() => void} onPress @param {string} [name] */
export function makeButton(words, onPress, name = "") {
  const button = /** @type {HTMLButtonElement} */ (make("button", `mgpu-button ${name}`, words));
  button.type = "button";
  button.addEventListener("click", onPress);
  return button;
}

/**
 * A button that asks before it acts. The question stands in `place`; its default answer is no.
 * @param {object} options
 * @param {Translate} options.t
 * @param {string} options.words of the button
 * @param {string} options.confirm words of the answer that acts
 * @param {() => string} options.question says what will be lost
 * @param {() => void} options.onConfirm
 * @param {HTMLElement} options.place
 */
export function makeAskingButton({ t, words, confirm, question, onConfirm, place }) {
  const text = make("p", "mgpu-question-text");
  const no = makeButton(t("keep"), () => close());
  const yes = makeButton(confirm, () => { close(); onConfirm(); }, "mgpu-button-danger");
  const box = make("div", "mgpu-question", text, make("span", "mgpu-buttons", no, yes));
  box.setAttribute("role", "group");
  const button = makeButton(words, () => (box.isConnected ? close() : open()));
  button.setAttribute("aria-expanded", "false");
  box.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    close();
  });
  function ask() {
    setText(text, question());
    setAttribute(box, "aria-label", question());
  }
  function open() {
    ask();
    place.append(box);
    button.setAttribute("aria-expanded", "true");
    no.focus();
  }
  function close() {
    if (!box.isConnected) return;
    const hadFocus = box.contains(/** @type {Document} */ (box.getRootNode()).activeElement);
    box.remove();
    button.setAttribute("aria-expanded", "false");
    if (hadFocus && !button.hidden) button.focus();
  }
  return {
    button,
    /** @param {boolean} isPossible */
    update(isPossible) {
      setShown(button, isPossible);
      if (!isPossible) close();
      else if (box.isConnected) ask();
    },
  };
}

/** The last lines that a task printed. It stays at its end unless somebody scrolled up. */
export function makeDiary() {
  const node = make("pre", "mgpu-diary");
  node.tabIndex = 0;
  node.setAttribute("role", "region");
  return {
    node,
    /** @param {string} label @param {string} text */
    update(label, text) {
      const isAtEnd = node.scrollHeight - node.scrollTop - node.clientHeight < 4;
      setAttribute(node, "aria-label", label);
      setText(node, text);
      if (isAtEnd) node.scrollTop = node.scrollHeight;
    },
  };
}

/**
 * Whether the kernel says that something can be asked for; where it says nothing, what is usual.
 * @param {{ controls?: string[] }} one @param {string} action @param {boolean} isUsual
 */
export function offers(one, action, isUsual) {
  return isUsual && (one.controls?.includes(action) ?? true);
}
