import type { TranslationBundle } from '@jupyterlab/translation';
import { keyed, make, setAttribute } from 'mgpu-views/parts.js';

import type { SidebarModel } from './model.js';
import type { ITask } from './rows.js';
import { stateWords } from './taskList.js';

/** Something that happened, and when, in seconds since 1970. */
export interface IMark {
  readonly at: number;
  readonly words: string;
}

/** What explains a curve: tasks that began and ended, engines that died. */
export function marksOf({ document, histories }: SidebarModel, trans: TranslationBundle): IMark[] {
  const tasks = document.tasks.flatMap(task => [
    ...markOf(task.started, trans.__('%1 started', task.name)),
    ...markOf(task.finished, `${task.name}: ${stateWords(task.state, trans)}`)
  ]);
  const names = new Map(document.pools.map(pool => [pool.id, pool.name]));
  const deaths = histories.deaths.map(({ at, pool, rank }) => ({
    at,
    words: trans.__('rank %1 of %2 died', rank, names.get(pool) ?? pool)
  }));
  return [...tasks, ...deaths].sort((a, b) => a.at - b.at);
}

function markOf(at: ITask['started'], words: string): IMark[] {
  return at === null ? [] : [{ at, words }];
}

/** Vertical lines over a chart. @param over covers the chart's plot */
export function makeMarks(over: HTMLElement): {
  update(marks: readonly (IMark & { share: number })[]): void;
} {
  const box = make('div', 'mgpu-marks');
  over.append(box);
  return keyed<IMark & { share: number }>(
    box,
    mark => `${mark.at} ${mark.words}`,
    () => {
      const node = make('div', 'mgpu-mark');
      return {
        node,
        update({ share, words }) {
          node.style.left = `${(100 * share).toFixed(2)}%`;
          setAttribute(node, 'title', words);
        }
      };
    }
  );
}
