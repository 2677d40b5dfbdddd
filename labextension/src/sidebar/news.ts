import { Notification } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';

import type { SidebarModel } from './model.js';
import type { ISidebarSettings } from './settings.js';

interface IEvent {
  readonly words: string;
  readonly isBad: boolean;
}

const ANNOUNCE_EVERY_MS = 10_000;
/** So many events one notification names. */
const AT_ONCE = 3;

/**
 * Tells what has changed for good: tasks that ended, GPUs and engines that are gone.
 *
 * A screen reader hears it, at most every 10 s; what the settings want is a notification, too.
 */
export class News {
  /** The live region; it is to be in the page. */
  readonly node: HTMLElement;

  constructor(
    private readonly _model: SidebarModel,
    private readonly _trans: TranslationBundle,
    private readonly _settings: () => ISidebarSettings
  ) {
    this.node = document.createElement('div');
    this.node.className = 'mgpu-unseen';
    this.node.setAttribute('role', 'status');
    this.node.setAttribute('aria-live', 'polite');
    _model.changed.connect(this._compare, this);
  }

  private _compare(): void {
    if (this._model.document.at === 0 || !['live', 'polling'].includes(this._model.link.kind)) {
      return;
    }
    const states = statesOf(this._model);
    const [before, since] = [this._states, this._at];
    this._states = states;
    this._at = this._model.document.at;
    if (before === null) {
      return;
    }
    const events = [...states].flatMap(([key, now]) =>
      isNews(before.get(key), now, since) ? this._eventOf(key, now) : []
    );
    this._notify(events);
    this._announce(events.map(({ words }) => words));
  }

  private _eventOf(key: string, now: IStanding): IEvent[] {
    const kind = key.slice(0, key.indexOf(' '));
    const words = wordsOf(kind, now, this._trans);
    const isBad = ['failed', 'lost', 'dead', 'orphaned', 'degraded'].includes(now.state);
    return words ? [{ words, isBad }] : [];
  }

  private _notify(events: readonly IEvent[]): void {
    const { alerts } = this._settings();
    const wanted = events.filter(({ isBad }) => alerts === 'all' || (alerts === 'errors' && isBad));
    if (!wanted.length) {
      return;
    }
    const isBad = wanted.some(event => event.isBad);
    const more = wanted.length - AT_ONCE;
    const words = wanted.slice(0, AT_ONCE).map(event => event.words);
    if (more > 0) {
      words.push(this._trans.__('And %1 more.', more));
    }
    Notification.emit(words.join(' '), isBad ? 'error' : 'info', {
      autoClose: isBad ? false : 5000
    });
  }

  private _announce(words: readonly string[]): void {
    this._waiting.push(...words);
    if (!this._waiting.length || this._timer) {
      return;
    }
    const wait = Math.max(0, this._saidAt + ANNOUNCE_EVERY_MS - Date.now());
    this._timer = window.setTimeout(() => {
      this._timer = 0;
      this._saidAt = Date.now();
      this.node.textContent = this._waiting.splice(0).join('. ');
    }, wait);
  }

  private _states: Map<string, IStanding> | null = null;
  private _at = 0;
  private _timer = 0;
  private _saidAt = 0;
  private readonly _waiting: string[] = [];
}

interface IStanding {
  readonly name: string;
  readonly state: string;
  /** When it ended, of a task. */
  readonly finished?: number | null;
}

/** Whether something has changed, or a task began and ended since the last look. */
function isNews(before: IStanding | undefined, now: IStanding, sinceS: number): boolean {
  return before ? before.state !== now.state : (now.finished ?? 0) > sinceS;
}

function statesOf({ document: told }: SidebarModel): Map<string, IStanding> {
  return new Map([
    ...told.gpus.map(gpu => [`gpu ${gpu.id}`, { name: gpu.label, state: gpu.state }] as const),
    ...told.pools.map(pool => [`pool ${pool.id}`, pool] as const),
    ...told.tasks.map(task => [`task ${task.key}`, task] as const)
  ]);
}

function wordsOf(kind: string, { name, state }: IStanding, trans: TranslationBundle): string {
  const words: Readonly<Record<string, string>> = {
    'gpu lost': trans.__('%1 is lost.', name),
    'gpu ok': trans.__('%1 is back.', name),
    'pool degraded': trans.__('An engine of pool %1 has died.', name),
    'pool orphaned': trans.__(
      'The kernel of pool %1 has died; engines of it are still there.',
      name
    ),
    'task finished': trans.__('%1 is finished.', name),
    'task failed': trans.__('%1 failed.', name),
    'task cancelled': trans.__('%1 is cancelled.', name)
  };
  return words[`${kind} ${state}`] ?? '';
}
