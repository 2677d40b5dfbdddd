import { LabIcon } from '@jupyterlab/ui-components';

/** A chip with a core and its legs. */
export const gpuIcon = new LabIcon({
  name: 'jupyter-mgpu:gpu',
  svgstr:
    '<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24"><path class="jp-icon3 jp-icon-selectable" fill="#616161" d="M7 2h2v3h2V2h2v3h2V2h2v3h2v2h3v2h-3v2h3v2h-3v2h3v2h-3v2h-2v3h-2v-3h-2v3h-2v-3H9v3H7v-3H5v-2H2v-2h3v-2H2v-2h3V9H2V7h3V5h2zM7 7v10h10V7zm2 2h6v6H9z"/></svg>'
});

/** Two bars. */
export const pauseIcon = new LabIcon({
  name: 'jupyter-mgpu:pause',
  svgstr:
    '<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24"><path class="jp-icon3" fill="#616161" d="M6 5h4v14H6zm8 0h4v14h-4z"/></svg>'
});
