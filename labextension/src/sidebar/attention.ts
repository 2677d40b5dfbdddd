/** So long without a key or a click nobody is taken to be there. */
const AWAY_MS = 30 * 60_000;
const LOOK_EVERY_MS = 60_000;

/**
 * Tells whether somebody is at the page: it is visible, and it was used in the last half hour.
 *
 * A page that nobody looks at is not to keep a server alive that is culled when it is idle.
 */
export class Attention {
  constructor(private readonly _onChange: () => void) {
    document.addEventListener('visibilitychange', this._onChange);
    document.addEventListener('pointerdown', this._used, { capture: true, passive: true });
    document.addEventListener('keydown', this._used, { capture: true, passive: true });
    this._timer = setInterval(() => this._look(), LOOK_EVERY_MS);
  }

  /** Whether the page can be seen. */
  get isVisible(): boolean {
    return document.visibilityState === 'visible';
  }

  /** Whether the page was not used for long. */
  get isAway(): boolean {
    return this._isAway;
  }

  dispose(): void {
    document.removeEventListener('visibilitychange', this._onChange);
    document.removeEventListener('pointerdown', this._used, { capture: true });
    document.removeEventListener('keydown', this._used, { capture: true });
    clearInterval(this._timer);
  }

  private readonly _used = (): void => {
    this._usedAt = Date.now();
    this._look();
  };

  private _look(): void {
    const isAway = Date.now() - this._usedAt >= AWAY_MS;
    if (isAway !== this._isAway) {
      this._isAway = isAway;
      this._onChange();
    }
  }

  private _usedAt = Date.now();
  private _isAway = false;
  private readonly _timer: ReturnType<typeof setInterval>;
}
