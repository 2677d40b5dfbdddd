import type { JupyterFrontEndPlugin } from '@jupyterlab/application';

const plugins: JupyterFrontEndPlugin<void>[] = [
  { id: 'jupyter-mgpu:views', description: 'Live views', autoStart: true, activate: () => undefined }
];

export default plugins;
