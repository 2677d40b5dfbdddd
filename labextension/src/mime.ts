import type { ISessionContext } from '@jupyterlab/apputils';
import type { IRenderMime } from '@jupyterlab/rendermime';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { Message } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';

import { KernelLink } from './kernelLink.js';
import { type IView, isViewState, VIEW_MIME } from './tokens.js';
import { ViewModel } from './viewModel.js';

/** Above the widgets' MIME type, which has -10: a bundle carries both. */
export const RANK = -100;

/** Makes the renderers of a notebook's views, which are fed by the notebook's kernel. */
export function viewRenderers(
  sessionContext: ISessionContext,
  trans: TranslationBundle
): IRenderMime.IRendererFactory {
  return {
    safe: true, // draws by textContent alone, and runs nothing that an output carries
    mimeTypes: [VIEW_MIME],
    createRenderer: () => new ViewRenderer(sessionContext, trans)
  };
}

/** Shows a view: the state of its output at once, the kernel's when there is one. */
export class ViewRenderer extends Widget implements IRenderMime.IRenderer {
  constructor(sessionContext: ISessionContext, trans: TranslationBundle) {
    super();
    this._sessionContext = sessionContext;
    this._trans = trans;
    this.addClass('jp-mgpu-view');
    document.addEventListener('visibilitychange', this._tellVisible);
  }

  /** Draw an output, or take what it was updated to. */
  async renderModel(output: IRenderMime.IMimeModel): Promise<void> {
    const state = output.data[VIEW_MIME];
    if (!isViewState(state)) {
      this._showText(output);
      return;
    }
    if (this._model?.id === state.id && this._model.kind === state.kind) {
      this._model.take(state);
      this._link?.settle();
      return;
    }
    this._clear();
    const model = new ViewModel(state);
    this._model = model;
    try {
      const view = await loadView(state.kind);
      if (this.isDisposed || this._model !== model) {
        return;
      }
      this.node.replaceChildren();
      this._removeView = view.render({ model, el: this.node });
    } catch (error) {
      console.warn(`A view of kind ${state.kind} cannot be drawn; its text is shown.`, error);
      this._showText(output);
      return;
    }
    this._link = new KernelLink({
      sessionContext: this._sessionContext,
      model,
      trans: this._trans,
      isVisible: this._canBeSeen(),
      onBundle: data => output.setData({ data })
    });
  }

  override dispose(): void {
    if (this.isDisposed) {
      return;
    }
    document.removeEventListener('visibilitychange', this._tellVisible);
    this._clear();
    super.dispose();
  }

  protected override onAfterAttach(_: Message): void {
    this._tellVisible();
  }

  protected override onAfterShow(_: Message): void {
    this._tellVisible();
  }

  protected override onAfterHide(_: Message): void {
    this._tellVisible();
  }

  protected override onAfterDetach(_: Message): void {
    this._tellVisible();
  }

  private readonly _tellVisible = (): void => {
    this._link?.setVisible(this._canBeSeen());
  };

  private _canBeSeen(): boolean {
    return this.isVisible && document.visibilityState === 'visible';
  }

  private _showText(output: IRenderMime.IMimeModel): void {
    this._clear();
    const text = document.createElement('pre');
    text.textContent = String(output.data['text/plain'] ?? '');
    this.node.replaceChildren(text);
  }

  private _clear(): void {
    this._link?.dispose();
    this._link = null;
    this._removeView?.();
    this._removeView = undefined;
    this._model = null;
  }

  private _model: ViewModel | null = null;
  private _link: KernelLink | null = null;
  private _removeView: (() => void) | undefined;
  private readonly _sessionContext: ISessionContext;
  private readonly _trans: TranslationBundle;
}

/** Load a view's code, once for all; a kind that is not known is an error. */
async function loadView(kind: string): Promise<IView> {
  const module = (await import(
    /* webpackInclude: /\/(pool|gpus|tasks|training|compare)\.js$/ */
    `mgpu-views/${kind}.js`
  )) as { default: IView };
  return module.default;
}
