// @ts-check
/** What surrounds every view: notices, answers, announcements, lanes, buttons that ask first. */

import { clock, make, setAttribute, setShown, setText, translator } from "./parts.js";
import { spanWords } from "./marks.js";
import { makeAnnouncer, makeAnswer, makeSilence } from "./news.js";
import { unpacked } from "./packed.js";
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

/** @param {Translate} t @param {any} state @param {number|null} silentSince ms */
function noticeOf(t, state, silentSince) {
  if (!state) return t("waiting");
  if (state.notice) return state.notice;
  if (state.version > VERSION) return t("newer");
  if (silentSince === null) return "";
  const span = spanWords(t, (Date.now() - silentSince) / 1000);
  return t("silent", { span, time: clock(silentSince / 1000) });
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
