/** What is used of packages that JupyterLab shares, without installing all that they need. */
declare module '@jupyterlab/notebook' {
  import type { ISessionContext, IWidgetTracker, MainAreaWidget } from '@jupyterlab/apputils';
  import type { IRenderMimeRegistry } from '@jupyterlab/rendermime';
  import type { Token } from '@lumino/coreutils';
  import type { Widget } from '@lumino/widgets';

  export type NotebookPanel = MainAreaWidget<Widget & { readonly rendermime: IRenderMimeRegistry }> & {
    readonly sessionContext: ISessionContext;
  };
  export type INotebookTracker = IWidgetTracker<NotebookPanel>;
  export const INotebookTracker: Token<INotebookTracker>;
}
