import type { IStage } from './commands.js';
import { choose, confirmed, showText, tell } from './dialogs.js';
import type { Args } from './poolCommands.js';
import type { IEntry } from './rowMenu.js';
import type { ITask } from './rows.js';
import { COMMANDS } from './shown.js';

/** The menu of a task's row. */
export function taskEntries(task: string): IEntry[] {
  const { requestStop, cancel, output } = COMMANDS;
  return [
    { command: requestStop, args: { task } },
    { command: requestStop, args: { task, after: 'epoch' } },
    { command: cancel, args: { task } },
    { command: output, args: { task } },
    { command: COMMANDS.exportTasks, args: {} }
  ];
}

/** Whether a task can be asked to stop by itself, and whether after an epoch. */
export function canRequestStop({ state, kind, metrics }: ITask): { step: boolean; epoch: boolean } {
  const step = state === 'running' && kind === 'task';
  return { step, epoch: step && 'epoch' in metrics };
}

/** Whether what a task has printed can be shown. */
export function hasOutput({ state, kind }: ITask): boolean {
  return state !== 'queued' && kind === 'task';
}

/** Register what can be done to tasks. A row says which one is meant; the palette asks. */
export function addTaskCommands({ app, model, trans }: IStage): void {
  const { commands } = app;
  const meant = (args: Args): ITask | undefined =>
    model.document.tasks.find(task => task.key === args.task);
  const taskOf = async (args: Args, fits: (task: ITask) => boolean): Promise<ITask | null> => {
    const tasks = model.document.tasks.filter(fits);
    const found = tasks.find(task => task.key === args.task);
    return found ?? (args.task ? null : choose(trans.__('Which task?'), tasks));
  };
  const isPossible = (fits: (task: ITask) => boolean) => (args: Args) => {
    const task = meant(args);
    return !args.task || (task !== undefined && fits(task));
  };
  const canStop = (args: Args) => (task: ITask) =>
    args.after === 'epoch' ? canRequestStop(task).epoch : canRequestStop(task).step;
  const isOpen = ({ state }: ITask): boolean => state === 'running' || state === 'queued';
  commands.addCommand(COMMANDS.requestStop, {
    label: args => {
      if (!args.task) {
        return trans.__('Ask a task to stop');
      }
      return args.after === 'epoch' ? trans.__('Stop after epoch') : trans.__('Stop');
    },
    isEnabled: args => model.canAct && isPossible(canStop(args))(args),
    execute: async args => {
      const task = await taskOf(args, canStop(args));
      if (task) {
        const after = args.after === 'epoch' ? 'epoch' : 'step';
        tell(await model.act(task.pool, 'request-stop', { task: task.id, after }));
      }
    }
  });
  commands.addCommand(COMMANDS.cancel, {
    label: args => (args.task ? trans.__('Cancel…') : trans.__('Cancel a task…')),
    isEnabled: args => model.canAct && isPossible(isOpen)(args),
    execute: async args => {
      const task = await taskOf(args, isOpen);
      if (!task) {
        return;
      }
      const question =
        task.state === 'queued'
          ? trans.__('It has not begun.')
          : trans.__('What it has done so far is lost.');
      const title = trans.__('Cancel %1?', task.name);
      if (await confirmed(trans, title, question, trans.__('Cancel the task'))) {
        tell(await model.act(task.pool, 'cancel', { task: task.id }));
      }
    }
  });
  commands.addCommand(COMMANDS.output, {
    label: args => (args.task ? trans.__('Output') : trans.__('Show what a task has printed')),
    isEnabled: isPossible(hasOutput),
    execute: async args => {
      const task = await taskOf(args, hasOutput);
      if (task) {
        const text = await model.read(task.pool, 'diary', { task: task.id });
        await showText(trans, trans.__('Output of %1', task.name), text);
      }
    }
  });
}
