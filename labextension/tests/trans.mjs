// A translator that says everything in English, with its values.
const fill = (text, values) =>
  text.replace(/%(\d)/g, (_, n) => String(values[n - 1])).replaceAll('%%', '%');

export const trans = {
  __: (text, ...values) => fill(text, values),
  _n: (one, many, n, ...values) => fill(n === 1 ? one : many, [n, ...values])
};
