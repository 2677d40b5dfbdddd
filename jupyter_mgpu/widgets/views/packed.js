// @ts-check
/** States as a file holds them: lists of numbers are texts, since each number of a list would have a line. */

const PACKED = new Set(["values", "steps", "epoch_steps"]);
const GAP = "-";

/**
 * Read a state; one that is not packed stays as it is.
 * @param {any} value @param {boolean} [isPacked]
 * @returns {any}
 */
export function unpacked(value, isPacked = Boolean(value?.packed)) {
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

