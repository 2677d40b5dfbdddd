import type { TranslationBundle } from '@jupyterlab/translation';
import { makeState } from 'mgpu-views/marks.js';
import { duration, keyed, make, setAttribute, setShown, setText } from 'mgpu-views/parts.js';

import { poolEntries } from './poolCommands.js';
import type { IEngine, IPool } from './rows.js';
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

/** The pools of this user's kernels: their state, their engines, and the buttons to stop them. */
export function makePoolList(tools: ITools): { node: HTMLElement; update(shown: IShown): void } {
  const { trans } = tools;
  const list = make('ul', 'mgpu-rows');
  const start = commandButton(tools, trans.__('Insert %parpool'), COMMANDS.insert, () => ({}));
  const words = make('p', 'mgpu-hint');
  const empty = make('div', 'mgpu-empty', words, start);
  const trouble = make('p', 'mgpu-trouble');
  const node = make('div', 'mgpu-section', trouble, list, empty);
  setText(words, trans.__('No pool yet. A cell with %parpool starts one.'));
  let pools: IPool[] = [];
  const rows = keyed<IPoolRow>(
    list,
    row => row.pool.id,
    () => makePoolRow(tools)
  );
  tools.menu.serve(list, poolEntries);
  const refresh = walkable(list, {
    keys: () => pools.map(pool => pool.id),
    show: () => undefined,
    onEnter: pool => perform(tools, COMMANDS.notebook, { pool }),
    onDelete: pool => perform(tools, COMMANDS.stop, { pool })
  });
  return {
    node,
    update({ model }) {
      pools = model.document.pools;
      rows.update(
        pools.map(pool => ({
          pool,
          engines: model.document.enginesOf(pool.id),
          atS: model.document.at,
          refusal: refusalOf(model, trans)
        }))
      );
      setShown(empty, pools.length === 0);
      setText(trouble, model.document.poolsTrouble ?? '');
      setShown(trouble, model.document.poolsTrouble !== null);
      refresh();
    }
  };
}

interface IPoolRow {
  readonly pool: IPool;
  readonly engines: readonly IEngine[];
  readonly atS: number;
  /** Why nothing can be done to it; empty where it can. */
  readonly refusal: string;
}

function makePoolRow(tools: ITools): { node: HTMLElement; update(row: IPoolRow): void } {
  const { trans } = tools;
  const [state, name] = [makeState(), make('span', 'mgpu-row-name mgpu-row-wide')];
  const up = make('span', 'mgpu-number');
  const facts = make('p', 'mgpu-row-facts');
  const place = make('span', 'mgpu-row-quiet');
  let row: IPoolRow | null = null;
  const args = (): { pool: string } => ({ pool: row?.pool.id ?? '' });
  const notebook = commandButton(tools, '', COMMANDS.notebook, args);
  notebook.className = 'mgpu-link mgpu-row-wide';
  const button = (words: string, command: string): HTMLButtonElement =>
    commandButton(tools, words, command, args);
  const interrupt = button(trans.__('Interrupt'), COMMANDS.interrupt);
  const restart = button(trans.__('Restart…'), COMMANDS.restart);
  const stop = button(trans.__('Stop…'), COMMANDS.stop);
  const insert = button('', COMMANDS.insert);
  insert.className = 'mgpu-link mgpu-code mgpu-row-wide';
  insert.title = trans.__('Insert this line below the current cell');
  const engines = make('ul', 'mgpu-engines');
  const lanes = keyed<IEngine>(
    engines,
    engine => engine.rank,
    () => makeEngineRow(tools)
  );
  const node = make(
    'li',
    'mgpu-row',
    make('div', 'mgpu-row-line', state.node, name, up),
    make('div', 'mgpu-row-line', notebook, place),
    make('div', 'mgpu-row-line', insert),
    facts,
    make('div', 'mgpu-buttons', interrupt, restart, stop),
    engines
  );
  return {
    node,
    update(now) {
      row = now;
      const { pool, refusal } = now;
      node.dataset.key = pool.id;
      state.update(LOOKS[pool.state] ?? 'unknown', stateWords(now, trans));
      setText(name, pool.name);
      setText(up, pool.started === null ? '' : duration(now.atS - pool.started));
      setAttribute(up, 'title', trans.__('since its start'));
      const file = pool.notebook?.split('/').pop() ?? '';
      setText(notebook, file);
      setAttribute(notebook, 'title', pool.notebook);
      notebook.disabled = pool.notebook_path === null;
      setShown(notebook, file !== '');
      setText(place, pool.here ? '' : trans.__('of another server'));
      const isOrphan = pool.state === 'orphaned';
      const words = isOrphan ? (pool.state_words ?? '') : factsOf(pool, trans);
      setText(facts, words);
      setShown(facts, words !== '');
      setText(insert, pool.code);
      lanes.update(now.engines);
      setText(stop, isOrphan ? trans.__('Clean up…') : trans.__('Stop…'));
      setShown(interrupt, !isOrphan);
      setShown(restart, !isOrphan && pool.state !== 'silent');
      [interrupt, restart, stop].forEach(one => allow(one, refusal));
    }
  };
}

const LOOKS: Readonly<Record<string, string>> = {
  starting: 'starting',
  ready: 'ready',
  busy: 'busy',
  degraded: 'degraded',
  silent: 'stale',
  orphaned: 'lost'
};

function stateWords({ pool, engines }: IPoolRow, trans: TranslationBundle): string {
  const alive = engines.filter(engine => engine.state !== 'dead').length;
  const count = `${alive}/${pool.num_engines}`;
  switch (pool.state) {
    case 'starting':
      return trans.__('starting %1', count);
    case 'ready':
      return trans.__('ready %1', count);
    case 'busy':
      return trans.__('busy %1', count);
    case 'degraded':
      return trans.__('%1 of %2 engines', alive, pool.num_engines);
    case 'silent':
      return trans.__('silent');
    case 'orphaned':
      return trans.__('orphaned');
    default:
      return pool.state;
  }
}

function factsOf(pool: IPool, trans: TranslationBundle): string {
  const counts = [
    pool.running ? trans.__('%1 running', pool.running) : '',
    pool.queued ? trans.__('%1 queued', pool.queued) : ''
  ];
  // Of a pool that is well the state says it all.
  const words = ['ready', 'busy', 'starting'].includes(pool.state) ? '' : (pool.state_words ?? '');
  return [words, ...counts].filter(Boolean).join(' · ');
}

function makeEngineRow(tools: ITools): { node: HTMLElement; update(engine: IEngine): void } {
  const { trans } = tools;
  let now: IEngine | null = null;
  const rank = commandButton(tools, '', COMMANDS.log, () => ({
    pool: now?.pool ?? '',
    rank: now?.rank ?? 0
  }));
  rank.className = 'mgpu-link mgpu-row-quiet';
  rank.title = trans.__('Show the end of its log');
  const device = make('span', 'mgpu-row-wide');
  const state = makeState();
  const proof = makeState();
  proof.node.classList.add('mgpu-proof');
  const task = make('span', 'mgpu-row-task');
  const line = make('div', 'mgpu-row-line', rank, device, proof.node, state.node);
  const node = make('li', 'mgpu-engine', line, task);
  return {
    node,
    update(engine) {
      now = engine;
      setText(rank, trans.__('rank %1', engine.rank));
      setText(device, engine.device.replace(/ \(.*\)$/, ''));
      setAttribute(device, 'title', engine.device);
      setShown(proof.node, engine.proven !== null);
      const proven = engine.proven ? trans.__('proven') : trans.__('not proven');
      proof.update(engine.proven ? 'proven' : 'unproven', proven);
      state.update(engine.state, engineWords(engine.state, trans));
      setText(task, engine.task ?? '');
      setShown(task, engine.task !== null);
      setAttribute(task, 'title', engine.task);
    }
  };
}

function engineWords(state: string, trans: TranslationBundle): string {
  const words: Readonly<Record<string, string>> = {
    starting: trans.__('starting'),
    idle: trans.__('idle'),
    busy: trans.__('busy'),
    stopping: trans.__('stopping'),
    dead: trans.__('dead'),
    unknown: trans.__('unknown')
  };
  return words[state] ?? state;
}
