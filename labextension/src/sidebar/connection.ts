import type { IFrame, IHello } from './rows.js';

/** The version of the server's messages that this code knows. */
export const API_VERSION = 1;

/** How it stands with the server. */
export type Link =
  | { readonly kind: 'idle' | 'connecting' | 'live' | 'polling' | 'missing' | 'forbidden' }
  | { readonly kind: 'lost'; readonly since: number; readonly retryAt: number }
  | { readonly kind: 'mismatch'; readonly version: string; readonly apiVersion: number };

/** A request was answered by an error; status 0 says that nobody answered. */
export class RequestError extends Error {
  constructor(
    readonly status: number,
    message: string
  ) {
    super(message);
  }
}

/** How the server is reached. */
export interface ITransport {
  /** Ask for JSON; a RequestError says what went wrong. */
  request(path: string, body?: object): Promise<unknown>;
  openSocket(): WebSocket;
}

const RETRIES_MS = [1000, 2000, 5000, 15_000];
const RETRY_BROKEN_MS = 60_000;
const CLOSE_HIDDEN_MS = 60_000;
const SILENT_INTERVALS = 3;
const SILENT_AT_LEAST_MS = 5000;
const FAILED_SOCKETS = 2;

/** How long to wait before the n-th try, from 0; not all pages at the same moment. */
export function retryDelayMs(tries: number, random = Math.random()): number {
  const delay = RETRIES_MS[Math.min(tries, RETRIES_MS.length - 1)] ?? RETRY_BROKEN_MS;
  return delay * (0.8 + 0.4 * random);
}

/**
 * One connection to the server's stream, for all that a page shows.
 *
 * It is open while it is wanted: paused at once when nobody looks, closed a minute later. What is lost
 * is tried again, later and later. Where a proxy lets no WebSocket through, snapshots are asked for.
 */
export class Connection {
  constructor(
    private readonly _transport: ITransport,
    private readonly _onFrame: (frame: IFrame) => void,
    private readonly _onLink: (link: Link) => void
  ) {}

  get link(): Link {
    return this._link;
  }

  /** What the server said of itself; null before. */
  get hello(): IHello | null {
    return this._hello;
  }

  /** Say whether somebody looks, and how often there is to be news then. */
  want(isWanted: boolean, intervalS: number): void {
    const before = { isWanted: this._isWanted, intervalS: this._intervalS };
    this._isWanted = isWanted;
    this._intervalS = intervalS;
    if (isWanted && this._link.kind === 'idle') {
      void this._open();
    } else if (this._socket?.readyState === OPEN) {
      if (isWanted !== before.isWanted) {
        this._send({ type: isWanted ? 'resume' : 'pause' });
      }
      if (intervalS !== before.intervalS) {
        this._send({ type: 'interval', seconds: intervalS });
      }
      this._watch();
    } else if (!isWanted) {
      this._stop();
    }
  }

  /** Try again now. */
  retry(): void {
    this._tries = this._failedSockets = 0;
    this._stop();
    if (this._isWanted) {
      void this._open();
    }
  }

  dispose(): void {
    this._isWanted = false;
    this._stop();
  }

  private async _open(): Promise<void> {
    const round = ++this._round;
    this._set({ kind: 'connecting' });
    try {
      const hello = (await this._transport.request('hello')) as IHello;
      if (round !== this._round) {
        return;
      }
      this._hello = hello;
    } catch (error) {
      if (round === this._round) {
        this._fail(error);
      }
      return;
    }
    if (this._hello.api_version !== API_VERSION) {
      const { server_version: version, api_version: apiVersion } = this._hello;
      this._again({ kind: 'mismatch', version, apiVersion }, RETRY_BROKEN_MS);
    } else if (this._failedSockets >= FAILED_SOCKETS) {
      void this._poll(round);
    } else {
      this._listen(round);
    }
  }

  private _listen(round: number): void {
    const socket = this._transport.openSocket();
    this._socket = socket;
    socket.onmessage = event => {
      const frame = JSON.parse(String(event.data)) as IFrame;
      this._watch();
      if (frame.type === 'hello') {
        this._send({ type: 'interval', seconds: this._intervalS });
        if (!this._isWanted) {
          this._send({ type: 'pause' });
        }
        return;
      }
      if (frame.type === 'snapshot') {
        this._tries = this._failedSockets = 0;
        this._set({ kind: 'live' });
      }
      this._onFrame(frame);
    };
    socket.onclose = () => {
      if (round === this._round) {
        this._lose();
      }
    };
    this._watch();
  }

  private async _poll(round: number): Promise<void> {
    try {
      const frame = (await this._transport.request('snapshot')) as IFrame;
      if (round !== this._round) {
        return;
      }
      this._tries = 0;
      this._set({ kind: 'polling' });
      this._onFrame(frame);
      this._later(() => void this._poll(round), (this._hello?.poll_s ?? 5) * 1000);
    } catch (error) {
      if (round === this._round) {
        this._fail(error);
      }
    }
  }

  private _fail(error: unknown): void {
    const status = error instanceof RequestError ? error.status : 0;
    if (status === 404 || status === 403) {
      this._again({ kind: status === 404 ? 'missing' : 'forbidden' }, RETRY_BROKEN_MS);
    } else {
      this._lose();
    }
  }

  private _lose(): void {
    if (!this._isWanted) {
      this._stop();
      return;
    }
    if (this._socket !== null && this._link.kind !== 'live') {
      this._failedSockets += 1;
    } else if (this._link.kind === 'polling') {
      this._failedSockets = 0; // another server may let a WebSocket through
    }
    const delay = retryDelayMs(this._tries);
    this._tries += 1;
    this._lostAt ??= Date.now();
    this._again({ kind: 'lost', since: this._lostAt, retryAt: Date.now() + delay }, delay);
  }

  private _again(link: Link, delayMs: number): void {
    this._drop();
    this._set(link);
    this._later(() => void this._open(), delayMs);
  }

  /** Wait for the next sign of life; of one that is not wanted, for its end. */
  private _watch(): void {
    if (this._isWanted) {
      const silent = SILENT_INTERVALS * this._intervalS * 1000;
      this._later(() => this._lose(), Math.max(SILENT_AT_LEAST_MS, silent));
    } else {
      this._later(() => this._stop(), CLOSE_HIDDEN_MS);
    }
  }

  private _stop(): void {
    this._drop();
    this._set({ kind: 'idle' });
  }

  private _drop(): void {
    this._round += 1;
    clearTimeout(this._timer);
    const socket = this._socket;
    this._socket = null;
    if (socket) {
      socket.onmessage = socket.onclose = null;
      socket.close();
    }
  }

  private _send(message: object): void {
    if (this._socket?.readyState === OPEN) {
      this._socket.send(JSON.stringify(message));
    }
  }

  private _later(act: () => void, delayMs: number): void {
    clearTimeout(this._timer);
    this._timer = setTimeout(act, delayMs);
  }

  private _set(link: Link): void {
    if (link.kind === 'live' || link.kind === 'polling' || link.kind === 'idle') {
      this._lostAt = undefined;
    }
    if (JSON.stringify(link) !== JSON.stringify(this._link)) {
      this._link = link;
      this._onLink(link);
    }
  }

  private _link: Link = { kind: 'idle' };
  private _hello: IHello | null = null;
  private _socket: WebSocket | null = null;
  private _timer: ReturnType<typeof setTimeout> | undefined;
  private _round = 0;
  private _tries = 0;
  private _failedSockets = 0;
  private _lostAt: number | undefined;
  private _isWanted = false;
  private _intervalS = 1;
}

/** WebSocket.OPEN, which a substitute for the browser's class need not have. */
const OPEN = 1;
