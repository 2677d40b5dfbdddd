import type { CommandRegistry } from '@lumino/commands';
import type { TranslationBundle } from '@jupyterlab/translation';

import type { IStage } from './commands.js';
import { choose, confirmed, showText, tell } from './dialogs.js';
import type { IEntry } from './rowMenu.js';
import type { IPool } from './rows.js';
import { COMMANDS } from './shown.js';

export type Args =
  CommandRegistry.CommandFunc<unknown> extends (args: infer T) => unknown ? T : never;

/** The menu of a pool's row. */
export function poolEntries(pool: string): IEntry[] {
  const { notebook, insert, interrupt, restart, stop } = COMMANDS;
  return [interrupt, restart, stop, insert, notebook].map(command => ({ command, args: { pool } }));
}

/** Register what can be done to pools. A row says which one is meant; the palette asks. */
export function addPoolCommands({ app, model, trans, notebooks }: IStage): void {
  const { commands } = app;
  const meant = (args: Args): IPool | undefined =>
    model.document.pools.find(pool => pool.id === args.pool);
  const poolOf = async (args: Args): Promise<IPool | null> =>
    meant(args) ?? (args.pool ? null : choose(trans.__('Which pool?'), model.document.pools));
  /** The short words stand in the menu of a row, the long ones in the palette. */
  const label = (short: string, long: string) => (args: Args) => (args.pool ? short : long);
  const isPossible = (states: (state: string) => boolean) => (args: Args) =>
    model.canAct && states(meant(args)?.state ?? '');
  const ask = async (pool: IPool, action: 'restart' | 'stop'): Promise<void> => {
    const { title, question, yes } = questionOf(pool, action, trans);
    if (await confirmed(trans, title, question, yes)) {
      tell(await model.act(pool.id, action));
    }
  };
  commands.addCommand(COMMANDS.notebook, {
    label: label(trans.__('Open its notebook'), trans.__("Open a pool's notebook")),
    isEnabled: args => !args.pool || Boolean(meant(args)?.notebook_path),
    execute: async args => {
      const pool = await poolOf(args);
      if (pool?.notebook_path) {
        await commands.execute('docmanager:open', { path: pool.notebook_path });
      }
    }
  });
  commands.addCommand(COMMANDS.insert, {
    label: label(trans.__('Insert code'), trans.__('Insert the code that starts a pool')),
    execute: async args => {
      const code = meant(args)?.code ?? '%load_ext jupyter_mgpu\n%parpool';
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
    label: label(trans.__('Interrupt'), trans.__('Interrupt what runs on a pool')),
    isEnabled: isPossible(state => state !== 'orphaned'),
    execute: async args => {
      const pool = await poolOf(args);
      if (pool) {
        tell(await model.act(pool.id, 'interrupt'));
      }
    }
  });
  commands.addCommand(COMMANDS.restart, {
    label: label(trans.__('Restart…'), trans.__('Restart the engines of a pool…')),
    isEnabled: isPossible(state => state !== 'orphaned' && state !== 'silent'),
    execute: async args => {
      const pool = await poolOf(args);
      if (pool) {
        await ask(pool, 'restart');
      }
    }
  });
  commands.addCommand(COMMANDS.stop, {
    label: args =>
      meant(args)?.state === 'orphaned'
        ? trans.__('Clean up…')
        : label(trans.__('Stop…'), trans.__('Stop a pool…'))(args),
    isEnabled: isPossible(() => true),
    execute: async args => {
      const pool = await poolOf(args);
      if (pool) {
        await ask(pool, 'stop');
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

/** What is asked before engines end, with what is lost. */
function questionOf(
  pool: IPool,
  action: 'restart' | 'stop',
  trans: TranslationBundle
): { title: string; question: string; yes: string } {
  const { name, num_engines: engines, running } = pool;
  if (pool.state === 'orphaned') {
    const question = trans.__('Its kernel has died. The engines that are still there end.');
    return { title: trans.__('Clean up pool %1?', name), question, yes: trans.__('Clean up') };
  }
  const tasks = running
    ? trans._n('%1 task is running and ends.', '%1 tasks are running and end.', running)
    : trans.__('No task is running.');
  if (action === 'restart') {
    const lost = trans.__('Its %1 engines start afresh; variables on them are lost.', engines);
    const title = trans.__('Restart pool %1?', name);
    return { title, question: `${tasks} ${lost}`, yes: trans.__('Restart') };
  }
  const lost = trans.__('Its %1 engines end; variables on them are lost.', engines);
  const title = trans.__('Stop pool %1?', name);
  return { title, question: `${tasks} ${lost}`, yes: trans.__('Stop the pool') };
}
