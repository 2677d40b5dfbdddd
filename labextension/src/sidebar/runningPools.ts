import type { IRunningSessionManagers, IRunningSessions } from '@jupyterlab/running';
import type { TranslationBundle } from '@jupyterlab/translation';
import { LabIcon } from '@jupyterlab/ui-components';
import type { CommandRegistry } from '@lumino/commands';

import { tell } from './dialogs.js';
import { gpuIcon } from './icon.js';
import type { SidebarModel } from './model.js';
import { COMMANDS, refusalOf } from './shown.js';

/** List the pools in JupyterLab's panel of what is running. */
export function addRunningPools(
  managers: IRunningSessionManagers,
  model: SidebarModel,
  commands: CommandRegistry,
  trans: TranslationBundle
): void {
  managers.add({
    name: trans.__('GPU pools'),
    running: () =>
      model.document.pools.map((pool): IRunningSessions.IRunningItem => ({
        icon: (): LabIcon => gpuIcon,
        label: () => pool.name,
        labelTitle: () => `${pool.name}: ${pool.code}`,
        detail: () => pool.notebook?.split('/').pop() ?? '',
        open: () => void commands.execute(COMMANDS.notebook, { pool: pool.id }),
        shutdown: () => {
          const refusal = refusalOf(model, trans);
          if (refusal) {
            tell({ ok: false, words: refusal });
          } else {
            void commands.execute(COMMANDS.stop, { pool: pool.id });
          }
        }
      })),
    runningChanged: model.changed,
    refreshRunning: () => void model.refresh().catch(() => undefined), // the panel says what is wrong
    shutdownAll: () => {
      model.document.pools.forEach(pool => void model.act(pool.id, 'stop').then(tell));
    },
    shutdownLabel: trans.__('Stop the pool…'),
    shutdownAllLabel: trans.__('Stop all pools'),
    shutdownAllConfirmationText: trans.__(
      'All pools of your kernels end: what runs on them, and the variables on their engines, are lost.'
    )
  });
}
