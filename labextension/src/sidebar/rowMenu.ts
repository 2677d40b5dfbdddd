import type { CommandRegistry } from '@lumino/commands';
import type { ReadonlyJSONObject } from '@lumino/coreutils';
import { Menu } from '@lumino/widgets';

/** An entry of a row's menu. */
export interface IEntry {
  readonly command: string;
  readonly args: ReadonlyJSONObject;
}

/** The one menu of all rows: with the right button, the menu key, or the button of a row. */
export class RowMenu {
  constructor(commands: CommandRegistry) {
    this._menu = new Menu({ commands });
    this._menu.addClass('jp-mgpu-menu');
    this._menu.aboutToClose.connect(this._goBack, this);
  }

  /** Let the rows of a list have a menu; `entriesOf` gives what it has, by a row's key. */
  serve(list: HTMLElement, entriesOf: (key: string) => readonly IEntry[]): void {
    list.addEventListener('contextmenu', event => {
      const row = (event.target as Element).closest<HTMLElement>('[data-key]');
      if (row?.dataset.key === undefined || event.shiftKey) {
        return; // with Shift the browser's own menu comes
      }
      event.preventDefault();
      event.stopPropagation();
      const { left, top } = row.getBoundingClientRect();
      const isByKey = event.clientX === 0 && event.clientY === 0;
      const [x, y] = isByKey ? [left + 16, top + 16] : [event.clientX, event.clientY];
      this._open(row, entriesOf(row.dataset.key), x, y);
    });
  }

  /** Make the button that opens the menu of its row. */
  button(label: string, entriesOf: (key: string) => readonly IEntry[]): HTMLButtonElement {
    const button = document.createElement('button');
    button.type = 'button';
    button.className = 'mgpu-button mgpu-more';
    button.textContent = '⋯';
    button.title = label;
    button.setAttribute('aria-label', label);
    button.setAttribute('aria-haspopup', 'menu');
    button.addEventListener('click', () => {
      const row = button.closest<HTMLElement>('[data-key]');
      const { left, bottom } = button.getBoundingClientRect();
      if (row?.dataset.key !== undefined) {
        this._open(button, entriesOf(row.dataset.key), left, bottom);
      }
    });
    return button;
  }

  dispose(): void {
    this._menu.dispose();
  }

  private _open(from: HTMLElement, entries: readonly IEntry[], x: number, y: number): void {
    this._menu.clearItems();
    entries.forEach(entry => this._menu.addItem(entry));
    this._from = from;
    this._menu.open(x, y);
  }

  /** Give the focus back, unless what was chosen has taken it. */
  private _goBack(): void {
    const from = this._from;
    requestAnimationFrame(() => {
      if (document.activeElement === document.body) {
        from?.focus();
      }
    });
  }

  private _from: HTMLElement | null = null;
  private readonly _menu: Menu;
}
