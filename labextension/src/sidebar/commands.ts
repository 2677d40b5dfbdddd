import type { JupyterFrontEnd } from '@jupyterlab/application';
import { Clipboard, type ICommandPalette } from '@jupyterlab/apputils';
import type { INotebookTracker } from '@jupyterlab/notebook';
import type { TranslationBundle } from '@jupyterlab/translation';
import { historyIcon, refreshIcon, runIcon, settingsIcon } from '@jupyterlab/ui-components';
import type { CommandRegistry } from '@lumino/commands';

import { choose, confirmed, showText, tell } from './dialogs.js';
import { pauseIcon } from './icon.js';
import type { SidebarModel } from './model.js';
import type { IPool, ITask } from './rows.js';
import { COMMANDS } from './shown.js';

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

type Args = CommandRegistry.CommandFunc<unknown> extends (args: infer T) => unknown ? T : never;

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
      const { host, telemetry, gpus, pools, tasks } = model.document;
      const link = model.link.kind;
      Clipboard.copyToSystem(
        JSON.stringify({ link, host, telemetry, gpus, pools, tasks }, null, 1)
      );
    }
  });
}

function addPoolCommands({ app, model, trans, notebooks }: IStage): void {
  const { commands } = app;
  const poolOf = async (args: Args): Promise<IPool | null> => {
    const { pools } = model.document;
    const meant = pools.find(pool => pool.id === args.pool);
    return meant ?? (args.pool ? null : choose(trans.__('Which pool?'), pools));
  };
  const lost = (pool: IPool): string =>
    pool.running
      ? trans._n('%1 task is running and ends.', '%1 tasks are running and end.', pool.running)
      : trans.__('No task is running.');
  commands.addCommand(COMMANDS.notebook, {
    label: trans.__("Open a pool's notebook"),
    execute: async args => {
      const pool = await poolOf(args);
      if (pool?.notebook_path) {
        await commands.execute('docmanager:open', { path: pool.notebook_path });
      }
    }
  });
  commands.addCommand(COMMANDS.insert, {
    label: trans.__('Insert the code that starts a pool'),
    execute: async args => {
      const pool = model.document.pools.find(one => one.id === args.pool);
      const code = pool?.code ?? '%load_ext jupyter_mgpu\n%parpool';
      if (!notebooks?.currentWidget) {
        tell({ ok: false, words: trans.__('Open the notebook that is to have it first.') });
        return;
      }
      app.shell.activateById(notebooks.currentWidget.id);
      await commands.execute('notebook:insert-cell-below');
      notebooks.activeCell?.model.sharedModel.setSource(code);
    }
  });
  commands.addCommand(COMMANDS.interrupt, {
    label: trans.__('Interrupt what runs on a pool'),
    execute: async args => {
      const pool = await poolOf(args);
      if (pool) {
        tell(await model.act(pool.id, 'interrupt'));
      }
    }
  });
  commands.addCommand(COMMANDS.restart, {
    label: trans.__('Restart the engines of a pool…'),
    execute: async args => {
      const pool = await poolOf(args);
      if (!pool) {
        return;
      }
      const question = trans.__(
        '%1 Its %2 engines start afresh; variables on them are lost.',
        lost(pool),
        pool.num_engines
      );
      if (
        await confirmed(
          trans,
          trans.__('Restart pool %1?', pool.name),
          question,
          trans.__('Restart')
        )
      ) {
        tell(await model.act(pool.id, 'restart'));
      }
    }
  });
  commands.addCommand(COMMANDS.stop, {
    label: trans.__('Stop a pool…'),
    execute: async args => {
      const pool = await poolOf(args);
      if (!pool) {
        return;
      }
      const question =
        pool.state === 'orphaned'
          ? trans.__('Its kernel has died. The engines that are still there end.')
          : trans.__(
              '%1 Its %2 engines end; variables on them are lost.',
              lost(pool),
              pool.num_engines
            );
      if (
        await confirmed(
          trans,
          trans.__('Stop pool %1?', pool.name),
          question,
          trans.__('Stop the pool')
        )
      ) {
        tell(await model.act(pool.id, 'stop'));
      }
    }
  });
  commands.addCommand(COMMANDS.log, {
    label: trans.__("Show a rank's log"),
    execute: async args => {
      const pool = await poolOf(args);
      if (pool) {
        const rank = String(args.rank ?? 0);
        const text = await model.read(pool.id, 'log', { rank });
        await showText(trans, trans.__('Log of rank %1 of %2', rank, pool.name), text);
      }
    }
  });
}

function addTaskCommands({ app, model, trans }: IStage): void {
  const { commands } = app;
  const taskOf = async (args: Args, states: readonly string[]): Promise<ITask | null> => {
    const tasks = model.document.tasks.filter(task => states.includes(task.state));
    const meant = tasks.find(task => task.key === args.task);
    return meant ?? (args.task ? null : choose(trans.__('Which task?'), tasks));
  };
  commands.addCommand(COMMANDS.requestStop, {
    label: trans.__('Ask a task to stop'),
    execute: async args => {
      const task = await taskOf(args, ['running']);
      if (task) {
        const after = args.after === 'epoch' ? 'epoch' : 'step';
        tell(await model.act(task.pool, 'request-stop', { task: task.id, after }));
      }
    }
  });
  commands.addCommand(COMMANDS.cancel, {
    label: trans.__('Cancel a task…'),
    execute: async args => {
      const task = await taskOf(args, ['running', 'queued']);
      if (!task) {
        return;
      }
      const question =
        task.state === 'queued'
          ? trans.__('It has not begun.')
          : trans.__('What it has done so far is lost.');
      if (
        await confirmed(
          trans,
          trans.__('Cancel %1?', task.name),
          question,
          trans.__('Cancel the task')
        )
      ) {
        tell(await model.act(task.pool, 'cancel', { task: task.id }));
      }
    }
  });
  commands.addCommand(COMMANDS.output, {
    label: trans.__('Show what a task has printed'),
    execute: async args => {
      const task = await taskOf(args, ['running', 'finished', 'failed', 'cancelled']);
      if (task) {
        const text = await model.read(task.pool, 'diary', { task: task.id });
        await showText(trans, trans.__('Output of %1', task.name), text);
      }
    }
  });
}
