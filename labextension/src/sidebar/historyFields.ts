import type { TranslationBundle } from '@jupyterlab/translation';

import type { IGpu } from './rows.js';

const GIB = 2 ** 30;

export type Field = 'utilization' | 'memory_used' | 'power' | 'temperature';
type Curve = readonly (number | null)[];

/** The readings of all GPUs, as the server tells them: one every step, the newest last. */
export interface IHistory {
  /** When it was told, in seconds since 1970. */
  readonly at: number;
  readonly step_s: number;
  readonly gpus: Readonly<Record<string, Readonly<Partial<Record<Field, Curve>>>>>;
}

/** One kind of reading, and how it is written. */
export interface IField {
  readonly field: Field;
  readonly factor: number;
  readonly unit: string;
  readonly digits: number;
  readonly title: string;
}

/** The span that is shown, in seconds since 1970. */
export interface ISpan {
  readonly from: number;
  readonly to: number;
}

export interface ILine {
  readonly key: string;
  readonly label: string;
  readonly number: number;
  readonly xs: number[];
  readonly ys: (number | null)[];
}

/** All kinds of readings that have a chart. */
export function fieldsOf(trans: TranslationBundle): IField[] {
  return [
    { field: 'utilization', factor: 1, unit: '%', digits: 0, title: trans.__('GPU busy, %') },
    {
      field: 'memory_used',
      factor: 1 / GIB,
      unit: 'GiB',
      digits: 1,
      title: trans.__('Memory used, GiB')
    },
    { field: 'power', factor: 1, unit: 'W', digits: 0, title: trans.__('Power, W') },
    { field: 'temperature', factor: 1, unit: '°C', digits: 0, title: trans.__('Temperature, °C') }
  ];
}

/** The curve of one GPU within a span, in minutes before now, without what is missing at its ends. */
export function lineOf(
  gpu: IGpu,
  history: IHistory,
  { field, factor }: IField,
  span: ISpan
): ILine {
  const all = history.gpus[gpu.id]?.[field] ?? [];
  const points = all
    .map((y, place) => ({ at: history.at + (place + 1 - all.length) * history.step_s, y }))
    .filter(({ at }) => at >= span.from && at <= span.to);
  const places = points.flatMap(({ y }, place) => (y === null ? [] : [place]));
  const known = points.slice(places.at(0) ?? 0, (places.at(-1) ?? -1) + 1);
  return {
    key: gpu.id,
    label: gpu.label,
    number: gpu.index ?? gpu.order,
    xs: known.map(({ at }) => (at - history.at) / 60),
    ys: known.map(({ y }) => (y === null ? null : y * factor))
  };
}
