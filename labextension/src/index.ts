import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { INotebookTracker, type NotebookPanel } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { sidebar } from './sidebar/plugin.js';
import { RANK, viewRenderers } from './mime.js';

const views: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-mgpu:views',
  description:
    'Shows pools, GPUs, tasks and trainings in notebooks, with or without a live kernel.',
  autoStart: true,
  requires: [],
  optional: [INotebookTracker, ITranslator],
  activate: (
    _: JupyterFrontEnd,
    notebooks: INotebookTracker | null,
    translator: ITranslator | null
  ) => {
    const trans = (translator ?? nullTranslator).load('jupyter_mgpu');
    const serve = ({ content, sessionContext }: NotebookPanel): void =>
      content.rendermime.addFactory(viewRenderers(sessionContext, trans), RANK);
    notebooks?.forEach(serve);
    notebooks?.widgetAdded.connect((_, panel) => serve(panel));
  }
};

export default [views, sidebar];
