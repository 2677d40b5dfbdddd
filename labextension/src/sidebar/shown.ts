import type { TranslationBundle } from '@jupyterlab/translation';
import type { CommandRegistry } from '@lumino/commands';
import type { ReadonlyJSONObject } from '@lumino/coreutils';

import type { SidebarModel } from './model.js';
import type { RowMenu } from './rowMenu.js';
import type { ISidebarSettings } from './settings.js';

/** What every list of the sidebar draws from. */
export interface IShown {
  readonly model: SidebarModel;
  readonly settings: ISidebarSettings;
}

/** What every list of the sidebar is made with. */
export interface ITools {
  readonly trans: TranslationBundle;
  readonly commands: CommandRegistry;
  readonly menu: RowMenu;
}

/** Why nothing can be done to pools, in words; empty where it can. */
export function refusalOf(
  { canAct }: { readonly canAct: boolean },
  trans: TranslationBundle
): string {
  return canAct
    ? ''
    : trans.__(
        'You may look, not act: the permission "execute" on "jupyter_mgpu" is missing on this server.'
      );
}

/** Say on a button why it cannot be pressed; an empty reason says that it can. */
export function allow(button: HTMLButtonElement, refusal: string, title = ''): void {
  button.disabled = refusal !== '';
  button.title = refusal || title;
}

/** The ids of the commands; each is also a button, an entry of the palette, or both. */
export const COMMANDS = {
  open: 'mgpu:open',
  pause: 'mgpu:pause',
  retry: 'mgpu:retry',
  history: 'mgpu:open-history',
  exportHistory: 'mgpu:export-history',
  exportTasks: 'mgpu:export-tasks',
  diagnostics: 'mgpu:copy-diagnostics',
  settings: 'mgpu:open-settings',
  notebook: 'mgpu:open-notebook',
  insert: 'mgpu:insert-code',
  interrupt: 'mgpu:interrupt-pool',
  restart: 'mgpu:restart-pool',
  stop: 'mgpu:stop-pool',
  log: 'mgpu:show-log',
  cancel: 'mgpu:cancel-task',
  requestStop: 'mgpu:request-stop-task',
  output: 'mgpu:show-output'
} as const;

/** Run a command for a row, if it can be done to it now. */
export function perform({ commands }: ITools, command: string, args: ReadonlyJSONObject): void {
  if (commands.isEnabled(command, args)) {
    void commands.execute(command, args);
  }
}

/** Make a button that runs a command with what its row stands for now. */
export function commandButton(
  tools: ITools,
  words: string,
  command: string,
  args: () => Readonly<Record<string, string | number | null>>
): HTMLButtonElement {
  const button = document.createElement('button');
  button.type = 'button';
  button.className = 'mgpu-button';
  button.textContent = words;
  button.addEventListener('click', event => {
    event.stopPropagation();
    perform(tools, command, args());
  });
  return button;
}
