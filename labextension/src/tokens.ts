/** The MIME type of a view: its state as JSON, and the id by which the kernel knows it. */
export const VIEW_MIME = 'application/vnd.jupyter-mgpu.view.v1+json';

/** The comm target by which the kernel serves the states of its views. */
export const VIEW_TARGET = 'jupyter_mgpu.view';

/** The state of a view, as far as a host has to know it. */
export interface IViewState {
  readonly kind: string;
  readonly id: string;
  /** When it was so, in seconds since 1970. */
  readonly at: number;
  /** Whether it will never change again. */
  readonly final: boolean;
  readonly notice: string | null;
  readonly [name: string]: unknown;
}

/** A message between a view and its kernel. */
export type ViewMessage = Readonly<Record<string, unknown>>;

/** What a view draws from; the same for every host. */
export interface IViewModel {
  get(name: string): unknown;
  on(name: string, listener: (content?: ViewMessage) => void): void;
  off(name: string, listener: (content?: ViewMessage) => void): void;
  send(content: ViewMessage): void;
}

/** A view: draws a model into an element, and returns what takes it away again. */
export interface IView {
  render(host: { model: IViewModel; el: HTMLElement }): (() => void) | undefined;
}

/** Tell whether what an output carries is the state of a view. */
export function isViewState(data: unknown): data is IViewState {
  const state = data as Partial<IViewState> | null;
  return (
    typeof state === 'object' &&
    state !== null &&
    typeof state.kind === 'string' &&
    typeof state.id === 'string' &&
    typeof state.at === 'number'
  );
}
