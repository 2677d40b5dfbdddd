import type { IDisposable } from '@lumino/disposable';
import { type ISignal, Signal } from '@lumino/signaling';

import { Attention } from './attention.js';
import { Connection, type ITransport, type Link, RequestError } from './connection.js';
import { Histories } from './histories.js';
import type { IFrame } from './rows.js';
import { ServerDocument } from './serverDocument.js';

/** What became of an action, in words. */
export interface IOutcome {
  readonly ok: boolean;
  readonly words: string;
}

/** Who looks, and how often it wants news. */
interface IWatcher {
  readonly intervalS: number;
}

/**
 * GPUs, pools and tasks as the server tells them, while somebody of this page looks at them.
 *
 * `changed` comes at most once per animation frame.
 */
export class SidebarModel implements IDisposable {
  readonly document = new ServerDocument();
  readonly histories = new Histories();

  constructor(private readonly _transport: ITransport) {
    this._connection = new Connection(
      _transport,
      frame => this._take(frame),
      () => this._changeSoon()
    );
    this._attention = new Attention(() => {
      this._want();
      this._changeSoon();
    });
  }

  /** Something is to be drawn anew. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  get link(): Link {
    return this._connection.link;
  }

  /** Whether the user may do more than look. */
  get canAct(): boolean {
    return this._connection.hello?.capabilities.act ?? true; // nothing is shown before it
  }

  /** Whether the reader has stopped the news. */
  get isPaused(): boolean {
    return this._isPaused;
  }

  /** Whether nothing is read because nobody has used the page for long. */
  get isAway(): boolean {
    return this._attention.isAway;
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  /** Want news for something that is shown; null when it is not shown any more. */
  watch(who: string, watcher: IWatcher | null): void {
    if (watcher) {
      this._watchers.set(who, watcher);
    } else {
      this._watchers.delete(who);
    }
    this._want();
  }

  pause(isPaused: boolean): void {
    this._isPaused = isPaused;
    this._want();
    this._changeSoon();
  }

  retry(): void {
    this._connection.retry();
  }

  /** Read everything once, whoever looks. */
  async refresh(): Promise<void> {
    if (this.link.kind !== 'live') {
      const frame = (await this._transport.request('snapshot')) as IFrame;
      // Else the stream has told newer things meanwhile.
      if ((frame.at ?? 0) > this.document.at) {
        this._take(frame);
      }
    }
  }

  /** Do something to a pool; never throws, since what went wrong is to be read. */
  async act(pool: string, action: string, what: object = {}): Promise<IOutcome> {
    try {
      const path = `pools/${encodeURIComponent(pool)}/${action}`;
      return (await this._transport.request(path, what)) as IOutcome;
    } catch (error) {
      return { ok: false, words: wordsOf(error) };
    }
  }

  /** Read something of a pool, such as the end of a log. */
  async read(pool: string, what: string, query: Record<string, string>): Promise<string> {
    const path = `pools/${encodeURIComponent(pool)}/${what}?${new URLSearchParams(query)}`;
    try {
      return ((await this._transport.request(path)) as { text: string }).text;
    } catch (error) {
      return wordsOf(error);
    }
  }

  /** The readings of all GPUs for the last minutes. */
  async history(minutes: number): Promise<unknown> {
    return this._transport.request(`history?minutes=${minutes}`);
  }

  dispose(): void {
    if (this._isDisposed) {
      return;
    }
    this._isDisposed = true;
    this._attention.dispose();
    cancelAnimationFrame(this._asked);
    this._connection.dispose();
    Signal.clearData(this);
  }

  private _want(): void {
    const intervals = [...this._watchers.values()].map(({ intervalS }) => intervalS);
    const isSeen = intervals.length > 0 && this._attention.isVisible && !this.isAway;
    this._connection.want(isSeen && !this._isPaused, Math.min(...intervals, 60));
  }

  private _take(frame: IFrame): void {
    if (this.document.apply(frame)) {
      this.histories.take(frame, this.document);
      this._changeSoon();
    }
  }

  private _changeSoon(): void {
    this._asked ||= requestAnimationFrame(() => {
      this._asked = 0;
      this._changed.emit();
    });
  }

  private _asked = 0;
  private _isPaused = false;
  private _isDisposed = false;
  private readonly _attention: Attention;
  private readonly _connection: Connection;
  private readonly _watchers = new Map<string, IWatcher>();
  private readonly _changed = new Signal<this, void>(this);
}

function wordsOf(error: unknown): string {
  return error instanceof RequestError && error.status ? error.message : String(error);
}
