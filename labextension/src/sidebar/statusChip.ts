import type { TranslationBundle } from '@jupyterlab/translation';
import type { CommandRegistry } from '@lumino/commands';
import { Widget } from '@lumino/widgets';

import type { SidebarModel } from './model.js';
import { COMMANDS } from './shown.js';
import { ranges, shortSizeOf, type SizeUnit } from './units.js';

/** The interval at which the status bar is renewed while the panel is not shown, in seconds. */
export const CHIP_INTERVAL_S = 5;

/** The status bar's item: our GPUs, how busy and how full they are, and the tasks that run. */
export class StatusChip extends Widget {
  constructor(
    commands: CommandRegistry,
    private readonly _trans: TranslationBundle
  ) {
    super({ node: document.createElement('button') });
    this.addClass('jp-mgpu-chip');
    this.node.setAttribute('type', 'button');
    this.node.title = _trans.__('Show GPUs, pools and tasks');
    this.node.addEventListener('click', () => void commands.execute(COMMANDS.open));
  }

  show_(model: SidebarModel, unit: SizeUnit): void {
    const words = chipWords(model, unit, this._trans);
    if (this.node.textContent !== words) {
      this.node.textContent = words;
    }
  }
}

/** What the item says; empty where there is nothing to say. */
export function chipWords(model: SidebarModel, unit: SizeUnit, trans: TranslationBundle): string {
  if (model.isPaused) {
    return trans.__('GPUs: paused');
  }
  if (!['live', 'polling'].includes(model.link.kind)) {
    return model.link.kind === 'lost' ? trans.__('GPUs: connection lost') : '';
  }
  const { gpus, pools, tasks } = model.document;
  const ours = gpus.filter(gpu => gpu.users.some(user => user.ours));
  const chosen = ours.length ? ours : gpus;
  const indices = chosen.map(gpu => gpu.index).filter(index => index !== null);
  const running = tasks.filter(task => task.state === 'running');
  const parts = [
    chosen.length ? trans.__('GPU %1', ranges(indices)) : '',
    meanWords(
      chosen.map(gpu => gpu.utilization),
      trans
    ),
    memoryWords(chosen, unit),
    !chosen.length && pools.length ? trans._n('%1 pool', '%1 pools', pools.length) : '',
    running.length ? trans._n('%1 task', '%1 tasks', running.length) + progressWords(running) : ''
  ];
  return parts.filter(Boolean).join(' · ');
}

function meanWords(values: readonly (number | null)[], trans: TranslationBundle): string {
  const known = values.filter(value => value !== null);
  if (!known.length) {
    return '';
  }
  const sum = known.reduce((total, value) => total + value, 0);
  return trans.__('%1 %', Math.round(sum / known.length));
}

function memoryWords(
  gpus: readonly { readonly memory_used: number | null; readonly memory_total: number | null }[],
  unit: SizeUnit
): string {
  const known = gpus.filter(gpu => gpu.memory_used !== null && gpu.memory_total !== null);
  if (!known.length) {
    return '';
  }
  const sum = (values: readonly (number | null)[]): number =>
    values.reduce<number>((total, value) => total + (value ?? 0), 0);
  const used = sum(known.map(gpu => gpu.memory_used));
  return shortSizeOf(used, sum(known.map(gpu => gpu.memory_total)), unit);
}

function progressWords(tasks: readonly { readonly progress: number | null }[]): string {
  const known = tasks.map(task => task.progress).filter(progress => progress !== null);
  if (known.length !== 1) {
    return '';
  }
  return ` ${Math.floor(100 * (known[0] ?? 0))} %`;
}
