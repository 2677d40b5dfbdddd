import { type IKeyedRow, keyed } from 'mgpu-views/parts.js';

/** Rows that are drawn beyond those that can be seen, above and below. */
const MARGIN = 4;

/**
 * A list of rows of one height, of which only those that can be seen are drawn.
 *
 * It scrolls with the nearest ancestor that does, which `scroller` finds.
 */
export class VirtualRows<T> {
  constructor(
    private readonly _list: HTMLElement,
    private readonly _scroller: () => HTMLElement | null,
    private readonly _keyOf: (item: T) => string,
    create: (item: T) => IKeyedRow<T>,
    private readonly _onDraw: () => void
  ) {
    this._rows = keyed(_list, _keyOf, create);
  }

  get keys(): readonly string[] {
    return this._items.map(this._keyOf);
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
    const top = this._top(scroller) + place * this._height;
    const bottom = top + this._height;
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
    const before = this._height;
    this._place();
    if (this._measure() !== before) {
      this._place();
    }
    this._onDraw();
  };

  private _place(): void {
    const { first, last } = this._window(this._follow());
    this._list.style.paddingTop = `${first * this._height}px`;
    this._list.style.paddingBottom = `${(this._items.length - last) * this._height}px`;
    this._rows.update(this._items.slice(first, last));
  }

  private _window(scroller: HTMLElement | null): { first: number; last: number } {
    const count = this._items.length;
    if (scroller === null || this._height === 0) {
      return { first: 0, last: Math.min(count, 4 * MARGIN) };
    }
    const from = (scroller.scrollTop - this._top(scroller)) / this._height;
    const to = from + scroller.clientHeight / this._height;
    const first = Math.min(count, Math.max(0, Math.floor(from) - MARGIN));
    return { first, last: Math.max(first, Math.min(count, Math.ceil(to) + MARGIN)) };
  }

  /** Where the list begins within what scrolls. */
  private _top(scroller: HTMLElement): number {
    const offset = this._list.getBoundingClientRect().top - scroller.getBoundingClientRect().top;
    return offset + scroller.scrollTop;
  }

  /** The height of a row; none is known before one is drawn and can be seen. */
  private _measure(): number {
    const row = this._list.firstElementChild as HTMLElement | null;
    this._height = row?.offsetHeight || this._height;
    return this._height;
  }

  private _follow(): HTMLElement | null {
    const scroller = this._scroller();
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
  private _height = 0;
  private _followed: HTMLElement | null = null;
  private readonly _rows: { update(items: readonly T[]): void };
  private readonly _observer = new ResizeObserver(() => this._draw());
}
