import type { TranslationBundle } from '@jupyterlab/translation';
import { make } from 'mgpu-views/parts.js';

import type { IField, ILine } from './historyFields.js';

/** A chart's readings as a table: of each GPU the last, the extremes, the mean, and each minute's mean. */
export function makeTable(
  { title, digits }: IField,
  lines: readonly ILine[],
  trans: TranslationBundle
): HTMLElement {
  const minutes = minutesOf(lines);
  const write = (value: number | undefined): string =>
    value === undefined ? trans.__('n/a') : value.toFixed(digits);
  const heads = [
    trans.__('GPU'),
    trans.__('last'),
    trans.__('lowest'),
    trans.__('mean'),
    trans.__('highest'),
    ...minutes.map(minute => (minute ? trans.__('%1 min ago', minute) : trans.__('last minute')))
  ];
  const rows = lines.map(line => {
    const known = line.ys.filter(y => y !== null);
    const lowest = known.length ? Math.min(...known) : undefined;
    const highest = known.length ? Math.max(...known) : undefined;
    const means = minutes.map(minute => meanOf(line, x => minuteOf(x) === minute));
    const values = [known.at(-1), lowest, meanOf(line, () => true), highest, ...means].map(write);
    return make('tr', '', headOf('row', line.label), ...values.map(value => make('td', '', value)));
  });
  const caption = make('caption', '', title);
  const head = make('tr', '', ...heads.map(text => headOf('col', text)));
  return make(
    'table',
    'mgpu-readings',
    caption,
    make('thead', '', head),
    make('tbody', '', ...rows)
  );
}

function headOf(scope: string, text: string): HTMLElement {
  const head = make('th', '', text);
  head.setAttribute('scope', scope);
  return head;
}

/** Which whole minutes before now the lines have readings of, the oldest first. */
function minutesOf(lines: readonly ILine[]): number[] {
  const minutes = lines.flatMap(line => line.xs.map(minuteOf));
  return [...new Set(minutes)].sort((a, b) => b - a);
}

function minuteOf(x: number): number {
  return Math.floor(Math.max(0, -x));
}

function meanOf({ xs, ys }: ILine, fits: (x: number) => boolean): number | undefined {
  const known = ys.filter((y, place): y is number => y !== null && fits(xs[place] ?? 0));
  return known.length ? known.reduce((sum, y) => sum + y, 0) / known.length : undefined;
}
