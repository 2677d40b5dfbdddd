import type { IViewModel, IViewState, ViewMessage } from './tokens.js';

type Listener = (content?: ViewMessage) => void;

/**
 * What a view draws from: the newest state that an output or the kernel told.
 *
 * While it is not live, its state is marked as final, so that a view offers no buttons, and says why.
 */
export class ViewModel implements IViewModel {
  /** Takes what the view sends; set while there is somebody to send it to. */
  sender: ((content: ViewMessage) => void) | null = null;

  constructor(state: IViewState) {
    this._state = state;
  }

  get id(): string {
    return this._state.id;
  }

  get kind(): string {
    return this._state.kind;
  }

  /** When the state was told, in seconds since 1970. */
  get at(): number {
    return this._state.at;
  }

  /** Whether nothing new can come. */
  get isFinal(): boolean {
    return this._state.final;
  }

  /** Take a state, unless a newer one is known. */
  take(state: IViewState): void {
    if (state.at < this._state.at && !state.final) {
      return;
    }
    this._state = { ...state, id: this._state.id };
    this._emit('change:state');
  }

  /** Say in one line why the state is not live; an empty line if it is. */
  setNotice(notice: string): void {
    if (notice !== this._notice) {
      this._notice = notice;
      this._emit('change:state');
    }
  }

  /** Hand a message of the kernel to the view. */
  tell(content: ViewMessage): void {
    this._emit('msg:custom', content);
  }

  get(name: string): unknown {
    if (name !== 'state') {
      return undefined;
    }
    if (this._state.final || !this._notice) {
      return this._state;
    }
    return { ...this._state, final: true, notice: this._notice };
  }

  on(name: string, listener: Listener): void {
    const listeners = this._listeners.get(name) ?? new Set();
    this._listeners.set(name, listeners.add(listener));
  }

  off(name: string, listener: Listener): void {
    this._listeners.get(name)?.delete(listener);
  }

  send(content: ViewMessage): void {
    this.sender?.(content);
  }

  private _emit(name: string, content?: ViewMessage): void {
    for (const listener of [...(this._listeners.get(name) ?? [])]) {
      listener(content);
    }
  }

  private _state: IViewState;
  private _notice = '';
  private readonly _listeners = new Map<string, Set<Listener>>();
}
