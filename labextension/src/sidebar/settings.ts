import type { SizeUnit } from './units.js';

export const SECTIONS = ['gpus', 'pools', 'tasks'] as const;
export type Section = (typeof SECTIONS)[number];

/** The settings of the sidebar, as schema/sidebar.json describes them. */
export interface ISidebarSettings {
  readonly interval: number;
  readonly sizeUnit: SizeUnit;
  readonly sections: readonly Section[];
  /** Whether GPUs that none of this user's pools has are left out. */
  readonly onlyOurs: boolean;
  readonly density: 'auto' | 'comfortable' | 'compact';
  /** From how much on a GPU's memory is called nearly full; null never. */
  readonly warnMemoryPercent: number | null;
  readonly alerts: 'off' | 'errors' | 'all';
  readonly statusBar: boolean;
}

export const DEFAULTS: ISidebarSettings = {
  interval: 1,
  sizeUnit: 'GiB',
  sections: SECTIONS,
  onlyOurs: false,
  density: 'auto',
  warnMemoryPercent: 90,
  alerts: 'errors',
  statusBar: true
};
