import type { TranslationBundle } from '@jupyterlab/translation';
import { makeProgress, makeSparkline, makeState } from 'mgpu-views/marks.js';
import {
  clock,
  duration,
  make,
  metric,
  setAttribute,
  setShown,
  setText
} from 'mgpu-views/parts.js';

import type { ITask } from './rows.js';
import { walkable } from './roving.js';
import {
  allow,
  COMMANDS,
  commandButton,
  type IShown,
  type ITools,
  perform,
  refusalOf
} from './shown.js';
import { canRequestStop, hasOutput, taskEntries } from './taskCommands.js';
import { secondsLeft } from './units.js';
import { VirtualRows } from './virtualRows.js';

const METRICS_SHOWN = 2;

/** The tasks of all pools: how far, how good, and the buttons to end them. */
export function makeTaskList(tools: ITools): {
  node: HTMLElement;
  update(shown: IShown): void;
  dispose(): void;
} {
  const { trans } = tools;
  const counts = make('p', 'mgpu-hint');
  const list = make('ul', 'mgpu-rows mgpu-task-rows');
  const hint = make('p', 'mgpu-hint');
  const node = make('div', 'mgpu-section', counts, list, hint);
  let shown: ITaskRow[] = [];
  const scroller = (): HTMLElement | null => node.parentElement;
  let refresh = (): void => undefined;
  const rows = new VirtualRows<ITaskRow>({
    list,
    scroller,
    keyOf: row => row.task.key,
    kindOf: row => (runs(row.task) ? 'long' : 'short'),
    create: () => makeTaskRow(tools),
    onDraw: () => refresh()
  });
  tools.menu.serve(list, taskEntries);
  const run = (command: string) => (key: string) => perform(tools, command, { task: key });
  refresh = walkable(list, {
    keys: () => rows.keys,
    show: key => rows.show(key),
    onEnter: run(COMMANDS.output),
    onDelete: run(COMMANDS.cancel)
  });
  return {
    node,
    dispose: () => rows.dispose(),
    update({ model }) {
      const { tasks, pools, at } = model.document;
      const names = new Map(pools.map(pool => [pool.id, pool.name]));
      shown = tasks.map((task, place) => ({
        task,
        place,
        count: tasks.length,
        atS: at,
        poolName: pools.length > 1 ? (names.get(task.pool) ?? '') : '',
        curve: model.histories.metricOf(task.key),
        refusal: refusalOf(model, trans)
      }));
      setText(counts, countWords(tasks, trans));
      setShown(counts, tasks.length > 0);
      setShown(list, tasks.length > 0);
      rows.update(shown); // measures a row, for which the list must be seen
      const hidden = pools.reduce((sum, pool) => sum + pool.hidden_tasks, 0);
      const more = hidden ? trans._n('%1 more is queued.', '%1 more are queued.', hidden) : '';
      setText(
        hint,
        tasks.length
          ? more
          : trans.__('No task yet. mgpu.parfeval(function) or a cell with %%%%parfeval starts one.')
      );
      setShown(hint, hint.textContent !== '');
    }
  };
}

interface ITaskRow {
  readonly task: ITask;
  /** In the whole list, from 0, and how many that has. */
  readonly place: number;
  readonly count: number;
  readonly atS: number;
  /** Empty where there is only one pool. */
  readonly poolName: string;
  readonly curve: readonly number[];
  /** Why nothing can be done to it; empty where it can. */
  readonly refusal: string;
}

/** What runs has a line of its own for its metrics. */
function runs({ state }: ITask): boolean {
  return state === 'running';
}

function makeTaskRow(tools: ITools): { node: HTMLElement; update(row: ITaskRow): void } {
  const { trans } = tools;
  const [state, name] = [makeState(), make('span', 'mgpu-row-name mgpu-row-wide')];
  const where = make('span', 'mgpu-row-quiet mgpu-row-task');
  const progress = makeProgress();
  const times = make('span', 'mgpu-row-quiet mgpu-row-task');
  const [metrics, spark] = [make('span', 'mgpu-row-wide'), makeSparkline()];
  const last = make('div', 'mgpu-row-line', spark.node, metrics);
  let row: ITaskRow | null = null;
  const button = (words: string, command: string, more: object = {}): HTMLButtonElement =>
    commandButton(tools, words, command, () => ({ task: row?.task.key ?? '', ...more }));
  const softly = button(trans.__('Stop'), COMMANDS.requestStop);
  const atEpoch = button(trans.__('Stop after epoch'), COMMANDS.requestStop, { after: 'epoch' });
  const cancel = button(trans.__('Cancel…'), COMMANDS.cancel);
  const output = button(trans.__('Output'), COMMANDS.output);
  const more = tools.menu.button(trans.__('More'), taskEntries);
  const softWords = trans.__('Asks the task to stop by itself; what it returns is kept.');
  const node = make(
    'li',
    'mgpu-row mgpu-task-row',
    make('div', 'mgpu-row-line', state.node, name, where),
    make('div', 'mgpu-row-line mgpu-row-times', progress.node, times),
    last,
    make('div', 'mgpu-buttons', softly, atEpoch, cancel, output, more)
  );
  return {
    node,
    update(now) {
      row = now;
      const { task, refusal } = now;
      node.dataset.key = task.key;
      setAttribute(node, 'aria-posinset', now.place + 1);
      setAttribute(node, 'aria-setsize', now.count);
      state.update(task.state, stateWords(task.state, trans));
      setText(name, task.name);
      setAttribute(name, 'title', task.name);
      const rank = task.rank === null ? '' : trans.__('rank %1', task.rank);
      setText(where, [now.poolName, rank].filter(Boolean).join(' · '));
      const isRunning = runs(task);
      node.classList.toggle('mgpu-task-short', !isRunning);
      setShown(progress.node, isRunning && task.progress !== null);
      const percent = trans.__('%1 %', Math.floor(100 * (task.progress ?? 0)));
      progress.update(trans.__('Progress of %1', task.name), task.progress, percent);
      const ended = [timesOf(now, trans), task.error ?? metricsOf(task)];
      setText(times, isRunning ? timesOf(now, trans) : ended.filter(Boolean).join(' · '));
      setAttribute(times, 'title', task.error);
      setShown(last, isRunning);
      setText(metrics, metricsOf(task) || trans.__('no report yet'));
      drawCurve(spark, now, trans);
      const can = canRequestStop(task);
      // Only as many as have room; the menu has all.
      setShown(softly, can.step && !can.epoch);
      setShown(atEpoch, can.epoch);
      setShown(cancel, isRunning || task.state === 'queued');
      setShown(output, hasOutput(task) && !can.epoch);
      setShown(more, isRunning);
      allow(softly, refusal, softWords);
      allow(atEpoch, refusal, softWords);
      allow(cancel, refusal);
    }
  };
}

function drawCurve(
  spark: ReturnType<typeof makeSparkline>,
  { task, curve }: ITaskRow,
  trans: TranslationBundle
): void {
  setShown(spark.node, curve.length > 1);
  spark.update(curve, {
    label: () =>
      trans.__(
        '%1 of %2: now %3, lowest %4, highest %5',
        Object.keys(task.metrics)[0] ?? '',
        task.name,
        ...[curve.at(-1), Math.min(...curve), Math.max(...curve)].map(value => metric(value))
      )
  });
}

function metricsOf({ metrics }: ITask): string {
  return Object.entries(metrics)
    .slice(0, METRICS_SHOWN)
    .map(([name, value]) => `${name} ${metric(value, name)}`)
    .join('  ');
}

function timesOf({ task, atS }: ITaskRow, trans: TranslationBundle): string {
  if (task.state === 'queued') {
    return task.created === null ? '' : trans.__('waits since %1', clock(task.created));
  }
  if (task.finished !== null) {
    const took =
      task.started === null ? '' : trans.__('took %1', duration(task.finished - task.started));
    return took || trans.__('ended %1', clock(task.finished));
  }
  if (task.started === null) {
    return '';
  }
  const left = secondsLeft(task.progress, task.started, atS);
  const elapsed = duration(atS - task.started);
  return left === null ? elapsed : trans.__('%1 · %2 left', elapsed, duration(left));
}

function countWords(tasks: readonly ITask[], trans: TranslationBundle): string {
  return ['running', 'queued', 'finished', 'failed', 'cancelled']
    .map(state => ({ state, count: tasks.filter(task => task.state === state).length }))
    .filter(({ count }) => count > 0)
    .map(({ state, count }) => `${count} ${stateWords(state, trans)}`)
    .join(' · ');
}

/** The word for a task's state. */
export function stateWords(state: string, trans: TranslationBundle): string {
  const words: Readonly<Record<string, string>> = {
    queued: trans.__('queued'),
    running: trans.__('running'),
    finished: trans.__('finished'),
    failed: trans.__('failed'),
    cancelled: trans.__('cancelled')
  };
  return words[state] ?? state;
}
