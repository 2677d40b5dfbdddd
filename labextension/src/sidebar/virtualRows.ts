import { type IKeyedRow, keyed } from 'mgpu-views/parts.js';

/** Rows that are drawn beyond those that can be seen, above and below. */
const MARGIN = 4;

/** What a list of virtual rows is made of. */
export interface IVirtualRows<T> {
  readonly list: HTMLElement;
  /** Finds the ancestor that scrolls. */
  scroller(): HTMLElement | null;
  keyOf(item: T): string;
  /** Rows of one kind are of one height. */
  kindOf(item: T): string;
  create(item: T): IKeyedRow<T>;
  onDraw(): void;
}

/** A list of rows of a few heights, of which only those that can be seen are drawn. */
export class VirtualRows<T> {
  constructor(private readonly _options: IVirtualRows<T>) {
    this._rows = keyed(_options.list, _options.keyOf, _options.create);
  }

  get keys(): readonly string[] {
    return this._items.map(this._options.keyOf);
  }

  update(items: readonly T[]): void {
    this._items = items;
    this._draw();
  }

  /** Scroll so far that a row is drawn. */
  show(key: string): void {
    const scroller = this._follow();
    const place = this.keys.indexOf(key);
    if (scroller === null || place < 0) {
      return;
    }
    const edges = this._edges();
    const top = this._top(scroller) + (edges[place] ?? 0);
    const bottom = this._top(scroller) + (edges[place + 1] ?? 0);
    if (top < scroller.scrollTop) {
      scroller.scrollTop = top;
    } else if (bottom > scroller.scrollTop + scroller.clientHeight) {
      scroller.scrollTop = bottom - scroller.clientHeight;
    }
    this._draw();
  }

  dispose(): void {
    this._followed?.removeEventListener('scroll', this._draw);
    this._observer.disconnect();
  }

  private readonly _draw = (): void => {
    this._place();
    if (this._measure()) {
      this._place();
    }
    this._options.onDraw();
  };

  private _place(): void {
    const { list } = this._options;
    const edges = this._edges();
    const { first, last } = this._window(this._follow(), edges);
    const at = (place: number): number => edges[place] ?? 0;
    list.style.paddingTop = `${at(first)}px`;
    list.style.paddingBottom = `${at(this._items.length) - at(last)}px`;
    this._shown = this._items.slice(first, last);
    this._rows.update(this._shown);
  }

  /** Where each row begins, and where the last one ends. */
  private _edges(): number[] {
    const edges = [0];
    for (const item of this._items) {
      edges.push((edges.at(-1) ?? 0) + (this._heights.get(this._options.kindOf(item)) ?? 0));
    }
    return edges;
  }

  private _window(
    scroller: HTMLElement | null,
    edges: readonly number[]
  ): { first: number; last: number } {
    const count = this._items.length;
    if (scroller === null || this._heights.size === 0) {
      return { first: 0, last: Math.min(count, 4 * MARGIN) };
    }
    const from = scroller.scrollTop - this._top(scroller);
    const to = from + scroller.clientHeight;
    const above = edges.filter(edge => edge <= from).length - 1;
    const until = edges.filter(edge => edge < to).length;
    const first = Math.min(count, Math.max(0, above - MARGIN));
    return { first, last: Math.max(first, Math.min(count, until + MARGIN)) };
  }

  /** Where the list begins within what scrolls. */
  private _top(scroller: HTMLElement): number {
    const { top } = this._options.list.getBoundingClientRect();
    return top - scroller.getBoundingClientRect().top + scroller.scrollTop;
  }

  /** Look how high each kind is; true if that was not known. It is not before a row can be seen. */
  private _measure(): boolean {
    let isNew = false;
    const measured = new Set<string>();
    this._shown.forEach((item, place) => {
      const kind = this._options.kindOf(item);
      const row = this._options.list.children[place] as HTMLElement | undefined;
      if (!measured.has(kind) && row?.offsetHeight) {
        measured.add(kind);
        isNew ||= this._heights.get(kind) !== row.offsetHeight;
        this._heights.set(kind, row.offsetHeight);
      }
    });
    return isNew;
  }

  private _follow(): HTMLElement | null {
    const scroller = this._options.scroller();
    if (scroller !== this._followed) {
      this._followed?.removeEventListener('scroll', this._draw);
      this._observer.disconnect();
      scroller?.addEventListener('scroll', this._draw, { passive: true });
      if (scroller) {
        this._observer.observe(scroller);
      }
      this._followed = scroller;
    }
    return scroller;
  }

  private _items: readonly T[] = [];
  private _shown: readonly T[] = [];
  private _followed: HTMLElement | null = null;
  private readonly _heights = new Map<string, number>();
  private readonly _rows: { update(items: readonly T[]): void };
  private readonly _observer = new ResizeObserver(() => this._draw());
}
