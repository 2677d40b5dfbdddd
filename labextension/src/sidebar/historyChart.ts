import type { TranslationBundle } from '@jupyterlab/translation';
import type { makeChart } from 'mgpu-views/chart.js';
import { make, setShown } from 'mgpu-views/parts.js';

import type { IField, ILine, ISpan } from './historyFields.js';
import { type IMark, makeMarks } from './historyMarks.js';
import { makeTable } from './historyTable.js';

/** A chart that is narrower has a legend below it, not names at the ends of its lines. */
const WIDTH_OF_ENDS = 440;
/** A drag over less than this share of a chart is a click. */
const SHORTEST_DRAG = 0.02;

/** What one chart shows. */
export interface IShownHistory {
  readonly lines: readonly ILine[];
  readonly marks: readonly IMark[];
  /** Now, in seconds since 1970. */
  readonly now: number;
  readonly isTable: boolean;
  /** Whether a table is renewed as well: whoever reads one is not to lose the place. */
  readonly isRenewed: boolean;
}

/** What the charts do together. */
export interface ITogether {
  onZoom(span: ISpan | null): void;
  /** The pointer is over a place of one chart, as a share of its width; null when it has left. */
  onPoint(from: HistoryChart, share: number | null): void;
}

/** One kind of reading of all GPUs: a chart, or the same as a table. */
export class HistoryChart {
  readonly node: HTMLElement;

  constructor(
    private readonly _field: IField,
    private readonly _chart: ReturnType<typeof makeChart>,
    private readonly _trans: TranslationBundle,
    private readonly _together: ITogether
  ) {
    this._over = _chart.node.querySelector<HTMLElement>('.mgpu-cursor') ?? make('div');
    this._zoom.hidden = true;
    this._over.append(this._zoom);
    this._marks = makeMarks(this._over);
    this.node = make('div', 'mgpu-history-part', _chart.node, this._table);
    this._listen();
  }

  update({ lines, marks, now, isTable, isRenewed }: IShownHistory): void {
    const trans = this._trans;
    const { title, unit, digits } = this._field;
    this._now = now;
    setShown(this._chart.node, !isTable);
    setShown(this._table, isTable);
    if (isTable) {
      if (isRenewed) {
        this._table.replaceChildren(makeTable(this._field, lines, trans));
      }
      return;
    }
    this._chart.update({
      title,
      endLabels: this._chart.node.clientWidth > WIDTH_OF_ENDS,
      lines: [...lines],
      writeX: x => (x > -0.02 ? trans.__('now') : trans.__('%1 min ago', (-x).toFixed(1))),
      writeY: y => (y === null ? trans.__('n/a') : `${y.toFixed(digits)} ${unit}`)
    });
    const [from, to] = this._range();
    const placed = marks.map(mark => ({
      ...mark,
      share: ((mark.at - now) / 60 - from) / (to - from || 1)
    }));
    this._marks.update(placed.filter(({ share }) => share >= 0 && share <= 1));
  }

  /** Point at the place that another chart points at. */
  point(share: number | null): void {
    const { left, width } = this._over.getBoundingClientRect();
    const type = share === null ? 'pointerleave' : 'pointermove';
    this._over.dispatchEvent(new PointerEvent(type, { clientX: left + (share ?? 0) * width }));
  }

  dispose(): void {
    this._chart.destroy();
  }

  private _listen(): void {
    const over = this._over;
    over.addEventListener('pointermove', event => {
      if (event.isTrusted) {
        this._together.onPoint(this, this._shareOf(event));
        this._drawZoom(this._shareOf(event));
      }
    });
    over.addEventListener('pointerleave', event => {
      if (event.isTrusted) {
        this._together.onPoint(this, null);
      }
    });
    over.addEventListener('pointerdown', event => {
      if (event.button === 0) {
        this._dragFrom = this._shareOf(event);
        over.setPointerCapture(event.pointerId);
      }
    });
    over.addEventListener('pointerup', event => {
      const [from, to] = [this._dragFrom, this._shareOf(event)];
      this._dragFrom = null;
      this._zoom.hidden = true;
      if (from !== null && Math.abs(to - from) >= SHORTEST_DRAG) {
        this._together.onZoom({
          from: this._timeAt(Math.min(from, to)),
          to: this._timeAt(Math.max(from, to))
        });
      }
    });
    over.addEventListener('dblclick', () => this._together.onZoom(null));
  }

  private _drawZoom(share: number): void {
    if (this._dragFrom !== null) {
      this._zoom.hidden = false;
      this._zoom.style.left = `${100 * Math.min(share, this._dragFrom)}%`;
      this._zoom.style.width = `${100 * Math.abs(share - this._dragFrom)}%`;
    }
  }

  private _shareOf(event: PointerEvent): number {
    const { left, width } = this._over.getBoundingClientRect();
    return Math.min(1, Math.max(0, (event.clientX - left) / (width || 1)));
  }

  private _timeAt(share: number): number {
    const [from, to] = this._range();
    return this._now + 60 * (from + share * (to - from));
  }

  /** What the chart spans, in minutes before now: it says so to screen readers. */
  private _range(): [number, number] {
    const [from, to] = ['aria-valuemin', 'aria-valuemax'].map(name =>
      Number(this._over.getAttribute(name))
    );
    return [from ?? 0, to ?? 0];
  }

  private _now = 0;
  private _dragFrom: number | null = null;
  private readonly _over: HTMLElement;
  private readonly _zoom = make('div', 'mgpu-zoom');
  private readonly _table = make('div', 'mgpu-history-table');
  private readonly _marks: ReturnType<typeof makeMarks>;
}
