// @ts-check
/** Elements, words, numbers and lists, for all views. */

/** @typedef {(key: string, values?: Record<string, string|number>) => string} Translate */

const SVG = "http://www.w3.org/2000/svg";
const GIB = 2 ** 30;

const PARTS_WORDS = {
  na: "n/a",
  percent: "{n} %",
  memory: "{used} / {total} GiB",
  memoryAlone: "{used} GiB",
  memorySpoken: "{used} of {total} gibibytes",
  reserved: "{words}, the driver reserves {reserved}",
  notAvailable: "not available: {reason}",
  noReason: "no reason was given",
  keep: "Keep",
  sparkSummary: "{label}, last {span}: now {now}, lowest {min}, highest {max}",
  sparkEmpty: "{label}: no readings yet",
  minutes: ["{n} minute", "{n} minutes"],
  seconds: ["{n} second", "{n} seconds"],
  waiting: "Waiting for the first news from the kernel.",
  silent: "No news for {span}: the kernel is busy, or gone. This is the state of {time}.",
  unanswered: "No answer from the kernel yet. If it is busy, Stop of the notebook (Interrupt the kernel) ends its cell.",
  typed: "In a cell the same is typed as: {type}",
  newer: "This was made by a newer version of jupyter_mgpu: some of it may be missing.",
  more: "and {n} more",
};

/**
 * Make an element. Text is never read as HTML.
 * @param {string} tag
 * @param {string} [name] its classes
 * @param {...(Node|string)} children
 */
export function make(tag, name, ...children) {
  const node = document.createElement(tag);
  if (name) node.className = name;
  node.append(...children);
  return node;
}

/** A list; one without bullets is a list for screen readers only if it says so. @param {string} name */
export function makeList(name) {
  const list = make("ul", name);
  list.setAttribute("role", "list");
  return list;
}

/** @param {string} tag @param {Record<string, string|number>} [attributes] */
export function makeSvg(tag, attributes = {}) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, String(value));
  return node;
}

/**
 * Change a text where it differs; what stays of a growing text keeps its selection.
 * @param {Node} node @param {string} text
 */
export function setText(node, text) {
  const old = node.firstChild;
  if (!(old instanceof Text)) {
    node.textContent = text;
    return;
  }
  const shared = text.length > 80 ? old.data.indexOf(text.slice(0, 80)) : -1;
  if (shared > 0 && text.startsWith(old.data.slice(shared))) old.deleteData(0, shared);
  if (old.data === text) return;
  if (old.data && text.startsWith(old.data)) old.appendData(text.slice(old.data.length));
  else old.data = text;
}

/** Change an attribute where it differs; null takes it away.
 * @param {Element} node @param {string} name @param {string|number|null} value */
export function setAttribute(node, name, value) {
  if (value === null) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, String(value));
}

/** @param {HTMLElement|SVGElement} node @param {boolean} isShown */
export function setShown(node, isShown) {
  node.toggleAttribute("hidden", !isShown);
}

/**
 * Look up words; a host may give other ones as `model.get("strings")`.
 * @param {{ get(name: string): any }} model
 * @param {Record<string, string|string[]>} table
 * @returns {Translate}
 */
export function translator(model, table) {
  const words = { ...PARTS_WORDS, ...table, ...(model.get("strings") || {}) };
  return (key, values = {}) => {
    const found = words[key] ?? key;
    const form = Array.isArray(found) ? found[values.n === 1 ? 0 : 1] : found;
    return form.replace(/\{(\w+)\}/g, (/** @type {string} */ hole, /** @type {string} */ name) =>
      String(values[name] ?? hole));
  };
}

/** Bytes as GiB without the unit: 0.25, 61.2. @param {number} bytes */
export function gib(bytes) {
  const size = bytes / GIB;
  return size.toFixed(size > 0 && size < 9.995 ? 2 : 1);
}

/** A metric with four significant digits; an epoch is a count. @param {number|null|undefined} value @param {string} [name] */
export function metric(value, name = "") {
  if (value === null || value === undefined || !Number.isFinite(value)) return "n/a";
  if (name === "epoch") return grouped(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
  return value.toFixed(size < 1 ? 4 : Math.max(0, 3 - Math.floor(Math.log10(size))));
}

/** A count with thin groups: 12 345. @param {number} count */
export function grouped(count) {
  return String(Math.round(count)).replace(/\B(?=(\d{3})+$)/g, "\u2009");
}

/** Seconds as 0:42, 12:04 or 1:02:03. @param {number|null} seconds */
export function duration(seconds) {
  if (seconds === null || !Number.isFinite(seconds)) return "n/a";
  const whole = Math.max(0, Math.round(seconds));
  const two = (/** @type {number} */ n) => String(n).padStart(2, "0");
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return `${minutes}:${two(whole % 60)}`;
  return `${Math.floor(minutes / 60)}:${two(minutes % 60)}:${two(whole % 60)}`;
}

/** A time of day; with the date if that is not today. @param {number} epoch seconds */
export function clock(epoch) {
  const time = new Date(epoch * 1000);
  const isToday = time.toDateString() === new Date().toDateString();
  return isToday ? time.toLocaleTimeString() : time.toLocaleString();
}

/** Classes of the colour and dash of a series: 16 differ without colour. @param {number} number */
export function seriesClass(number) {
  return `mgpu-s${number % 8} mgpu-dash${Math.floor(number / 8) % 4}`;
}

/**
 * Keep the children of a node in step with a list. Nodes are made once; the one that has the focus
 * or the selection is never moved.
 * @template T
 * @param {HTMLElement} parent
 * @param {(item: T) => string|number} keyOf
 * @param {(item: T) => { node: Element, update(item: T): void, destroy?(): void }} create
 */
export function keyed(parent, keyOf, create) {
  /** @type {Map<string|number, { node: Element, update(item: T): void, destroy?(): void }>} */
  const rows = new Map();
  return {
    /** @param {T[]} items */
    update(items) {
      const keys = new Set(items.map(keyOf));
      for (const [key, row] of rows) {
        if (keys.has(key)) continue;
        row.destroy?.();
        const root = /** @type {Document} */ (parent.getRootNode());
        if (row.node.contains(root.activeElement)) focusOn(parent); // else it goes to the page's top
        row.node.remove();
        rows.delete(key);
      }
      const nodes = items.map((item) => {
        const key = keyOf(item);
        const row = rows.get(key) ?? create(item);
        rows.set(key, row);
        row.update(item);
        return row.node;
      });
      placeInOrder(parent, nodes);
    },
    destroy() {
      for (const row of rows.values()) row.destroy?.();
    },
  };
}

/** @param {HTMLElement} node one that takes no focus by itself */
function focusOn(node) {
  node.tabIndex = -1;
  node.focus({ preventScroll: true });
}

/** @param {HTMLElement} parent @param {Element[]} nodes */
function placeInOrder(parent, nodes) {
  // To ask for the selection costs a layout, so only where something must move.
  const isInPlace = (/** @type {Element} */ node, /** @type {number} */ i) =>
    node.parentNode === parent && node.nextSibling === (nodes[i + 1] ?? null);
  if (nodes.every(isInPlace)) return; // also where there are none
  const root = /** @type {Document} */ (parent.getRootNode());
  const held = [root.activeElement, document.getSelection()?.anchorNode];
  let still = nodes.findIndex((node) => held.some((one) => one && node.contains(one)));
  if (still < 0) {
    still = 0;
    if (parent.firstChild !== nodes[0]) parent.insertBefore(nodes[0], parent.firstChild);
  }
  for (let i = still - 1; i >= 0; i--) {
    if (nodes[i].nextSibling !== nodes[i + 1]) parent.insertBefore(nodes[i], nodes[i + 1]);
  }
  for (let i = still + 1; i < nodes.length; i++) {
    if (nodes[i].previousSibling !== nodes[i - 1]) {
      parent.insertBefore(nodes[i], nodes[i - 1].nextSibling);
    }
  }
}
