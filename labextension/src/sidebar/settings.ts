import type { SizeUnit } from './units.js';

export const SECTIONS = ['gpus', 'pools', 'tasks'] as const;
export type Section = (typeof SECTIONS)[number];

/** The settings of the sidebar, as schema/sidebar.json describes them. */
export interface ISidebarSettings {
  readonly interval: number;
  readonly sizeUnit: SizeUnit;
  readonly sections: readonly Section[];
  readonly density: 'auto' | 'comfortable' | 'compact';
  readonly alerts: 'off' | 'errors' | 'all';
  readonly statusBar: boolean;
}

export const DEFAULTS: ISidebarSettings = {
  interval: 1,
  sizeUnit: 'GiB',
  sections: SECTIONS,
  density: 'auto',
  alerts: 'errors',
  statusBar: true
};
