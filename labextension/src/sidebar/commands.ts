import type { JupyterFrontEnd } from '@jupyterlab/application';
import { Clipboard, type ICommandPalette } from '@jupyterlab/apputils';
import type { INotebookTracker } from '@jupyterlab/notebook';
import type { TranslationBundle } from '@jupyterlab/translation';
import { historyIcon, refreshIcon, runIcon, settingsIcon } from '@jupyterlab/ui-components';

import { csvOfHistory, csvOfTasks, saveAs } from './csv.js';
import { tell } from './dialogs.js';
import { MOST_MINUTES } from './history.js';
import type { IHistory } from './historyFields.js';
import { pauseIcon } from './icon.js';
import type { SidebarModel } from './model.js';
import { addPoolCommands } from './poolCommands.js';
import { COMMANDS } from './shown.js';
import { addTaskCommands } from './taskCommands.js';

/** What the commands act on. */
export interface IStage {
  readonly app: JupyterFrontEnd;
  readonly model: SidebarModel;
  readonly trans: TranslationBundle;
  readonly notebooks: INotebookTracker | null;
  readonly palette: ICommandPalette | null;
  /** Shows the panel. */
  readonly open: () => void;
  /** Shows the history of the GPUs. */
  readonly openHistory: () => void;
}

/** Register all commands; those without a row to act on ask which one is meant. */
export function addCommands(stage: IStage): void {
  addViewCommands(stage);
  addPoolCommands(stage);
  addTaskCommands(stage);
  const category = stage.trans.__('GPU pools');
  for (const command of Object.values(COMMANDS)) {
    if (command !== COMMANDS.log) {
      stage.palette?.addItem({ command, category });
    }
  }
}

function addViewCommands({ app, model, trans, open, openHistory }: IStage): void {
  const { commands } = app;
  commands.addCommand(COMMANDS.open, {
    label: trans.__('Show GPUs, pools and tasks'),
    execute: open
  });
  commands.addCommand(COMMANDS.pause, {
    label: () => (model.isPaused ? trans.__('Go on reading') : trans.__('Pause reading')),
    caption: () => (model.isPaused ? trans.__('Go on reading') : trans.__('Pause reading')),
    icon: () => (model.isPaused ? runIcon : pauseIcon),
    isToggled: () => model.isPaused,
    execute: () => {
      model.pause(!model.isPaused);
      commands.notifyCommandChanged(COMMANDS.pause);
    }
  });
  commands.addCommand(COMMANDS.retry, {
    label: trans.__('Connect again'),
    icon: refreshIcon,
    execute: () => model.retry()
  });
  commands.addCommand(COMMANDS.history, {
    label: trans.__('History of the GPUs'),
    caption: trans.__('History of the GPUs'),
    icon: historyIcon,
    execute: openHistory
  });
  commands.addCommand(COMMANDS.exportHistory, {
    label: trans.__('Save the history of the GPUs as CSV'),
    execute: async () => {
      try {
        const history = (await model.history(MOST_MINUTES)) as IHistory;
        saveAs('gpu-history.csv', csvOfHistory(model.document.gpus, history));
      } catch (error) {
        tell({ ok: false, words: String(error) });
      }
    }
  });
  commands.addCommand(COMMANDS.exportTasks, {
    label: trans.__('Save the list of tasks as CSV'),
    execute: () => {
      const { pools, tasks } = model.document;
      const names = new Map(pools.map(({ id, name }) => [id, name]));
      saveAs('tasks.csv', csvOfTasks(tasks, names));
    }
  });
  commands.addCommand(COMMANDS.settings, {
    label: trans.__('Settings of the GPU panel'),
    caption: trans.__('Settings'),
    icon: settingsIcon,
    isVisible: () => commands.hasCommand('settingeditor:open'),
    execute: () => commands.execute('settingeditor:open', { query: 'GPU pools' })
  });
  commands.addCommand(COMMANDS.diagnostics, {
    label: trans.__('Copy what the GPU panel knows'),
    execute: () => {
      const { hosts, telemetry, gpus, pools, tasks } = model.document;
      const link = model.link.kind;
      Clipboard.copyToSystem(
        JSON.stringify({ link, hosts, telemetry, gpus, pools, tasks }, null, 1)
      );
    }
  });
}
