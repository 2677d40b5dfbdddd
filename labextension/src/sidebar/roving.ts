/** How a list of rows is walked with keys. */
export interface IWalk {
  /** The keys of all rows, in order, also of those that are not drawn now. */
  keys(): readonly string[];
  /** Draw a row that is not drawn yet. */
  show(key: string): void;
  onEnter(key: string): void;
  onDelete?(key: string): void;
}

/**
 * Let one row of a list be in the tab order, and arrows move on from it.
 *
 * A row is an element with `data-key`; its buttons can be reached by Tab while it is the one. Call what
 * is returned after each change of the rows.
 */
export function walkable(list: HTMLElement, walk: IWalk): () => void {
  let current = '';
  const rowOf = (key: string): HTMLElement | null =>
    list.querySelector<HTMLElement>(`[data-key="${CSS.escape(key)}"]`);

  function refresh(): void {
    const keys = walk.keys();
    if (!keys.includes(current)) {
      current = keys[0] ?? '';
    }
    for (const row of list.querySelectorAll<HTMLElement>('[data-key]')) {
      const isCurrent = row.dataset.key === current;
      row.tabIndex = isCurrent ? 0 : -1;
      row.querySelectorAll('button').forEach(button => {
        button.tabIndex = isCurrent ? 0 : -1;
      });
    }
  }

  function moveTo(key: string | undefined): void {
    if (key === undefined) {
      return;
    }
    walk.show(key);
    const row = rowOf(key);
    if (row) {
      current = key;
      refresh();
      row.focus();
    }
  }

  list.addEventListener('focusin', event => {
    const row = (event.target as Element).closest<HTMLElement>('[data-key]');
    if (row?.dataset.key && row.dataset.key !== current) {
      current = row.dataset.key;
      refresh();
    }
  });
  list.addEventListener('keydown', event => {
    const target = event.target as HTMLElement;
    if (target.dataset.key === undefined) {
      return;
    }
    const keys = walk.keys();
    const place = keys.indexOf(current);
    const moves: Record<string, () => void> = {
      ArrowDown: () => moveTo(keys[place + 1]),
      ArrowUp: () => moveTo(keys[place - 1]),
      Home: () => moveTo(keys[0]),
      End: () => moveTo(keys.at(-1)),
      Enter: () => walk.onEnter(current),
      Delete: () => walk.onDelete?.(current)
    };
    const move = moves[event.key];
    if (move) {
      event.preventDefault();
      event.stopPropagation();
      move();
    }
  });
  return refresh;
}
