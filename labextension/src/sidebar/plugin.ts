import {
  ILayoutRestorer,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { INotebookTracker } from '@jupyterlab/notebook';
import { IRunningSessionManagers } from '@jupyterlab/running';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { IStatusBar } from '@jupyterlab/statusbar';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { Signal } from '@lumino/signaling';

import { addCommands } from './commands.js';
import { HistoryOpener } from './history.js';
import { SidebarModel } from './model.js';
import { News } from './news.js';
import { GpuPanel } from './panel.js';
import { transportTo } from './request.js';
import { RowMenu } from './rowMenu.js';
import { addRunningPools } from './runningPools.js';
import { DEFAULTS, type ISidebarSettings } from './settings.js';
import { CHIP_INTERVAL_S, StatusChip } from './statusChip.js';

const CHIP = 'jupyter-mgpu-chip';

/** The sidebar with all that belongs to it. It works with what a front end has of the rest. */
export const sidebar: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-mgpu:sidebar',
  description: 'Shows GPUs, pools and background tasks of this server, and acts on them.',
  autoStart: true,
  requires: [],
  optional: [
    ITranslator,
    ISettingRegistry,
    ILayoutRestorer,
    ICommandPalette,
    INotebookTracker,
    IStatusBar,
    IRunningSessionManagers
  ],
  activate: (
    app: JupyterFrontEnd,
    translator: ITranslator | null,
    registry: ISettingRegistry | null,
    restorer: ILayoutRestorer | null,
    palette: ICommandPalette | null,
    notebooks: INotebookTracker | null,
    statusBar: IStatusBar | null,
    running: IRunningSessionManagers | null
  ) => {
    performance.mark('jupyter-mgpu:activate');
    const language = translator ?? nullTranslator;
    const trans = language.load('jupyter_mgpu');
    const { commands, shell, serviceManager } = app;
    const model = new SidebarModel(transportTo(serviceManager.serverSettings));
    let settings: ISidebarSettings = DEFAULTS;
    const tools = { trans, commands, menu: new RowMenu(commands) };
    const history = new HistoryOpener(model, tools, shell);
    const open = (): void => shell.activateById(GpuPanel.ID);
    const openHistory = (): void => history.open();
    addCommands({ app, model, trans, notebooks, palette, open, openHistory });
    const panel = new GpuPanel({ model, settings, tools, translator: language });
    panel.node.append(new News(model, trans, () => settings).node);
    shell.add(panel, 'left', { rank: 700, type: trans.__('GPU pools') });
    restorer?.add(panel, GpuPanel.ID);

    const chip = new StatusChip(commands, trans);
    const chipChanged = new Signal<unknown, void>(chip);
    const hasChip = (): boolean => statusBar !== null && settings.statusBar;
    statusBar?.registerStatusItem(CHIP, {
      item: chip,
      align: 'left',
      rank: 5,
      isActive: hasChip,
      activeStateChanged: chipChanged
    });
    model.changed.connect(() => chip.show_(model, settings.sizeUnit));
    const apply = (now: ISidebarSettings): void => {
      settings = now;
      panel.settings = now;
      chipChanged.emit();
      model.watch(CHIP, hasChip() ? { intervalS: CHIP_INTERVAL_S } : null);
    };
    apply(DEFAULTS);
    void registry?.load(sidebar.id).then(found => {
      const read = (): void =>
        apply({ ...DEFAULTS, ...(found.composite as unknown as ISidebarSettings) });
      found.changed.connect(read);
      read();
    });
    if (running) {
      addRunningPools(running, model, commands, trans);
    }
  }
};
