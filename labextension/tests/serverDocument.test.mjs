import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Histories, LENGTH } from '../lib/sidebar/histories.js';
import { ServerDocument } from '../lib/sidebar/serverDocument.js';

const taken = what => ({ at: 1, gpus: [], tasks: [], engines: [], ...what });
const snapshot = sections => ({ type: 'snapshot', at: 1, sections });

test('a delta changes fields, adds rows, and takes rows away', () => {
  const told = new ServerDocument();
  told.apply(snapshot({ pools: { a: { name: 'main', state: 'ready' }, b: { name: 'old' } } }));

  told.apply({
    type: 'delta',
    at: 2,
    changed: { pools: { a: { state: 'busy' }, c: { name: 'new' } } },
    gone: { pools: ['b'] }
  });

  assert.deepEqual(
    told.pools.map(({ id, name, state }) => [id, name, state]),
    [
      ['a', 'main', 'busy'],
      ['c', 'new', undefined]
    ]
  );
  assert.equal(told.at, 2);
});

test('another snapshot replaces everything', () => {
  const told = new ServerDocument();
  told.apply(snapshot({ pools: { a: { name: 'main' } }, gpus: { g: { order: 0 } } }));

  told.apply(snapshot({ gpus: { h: { order: 0 } } }));

  assert.deepEqual(told.pools, []);
  assert.deepEqual(
    told.gpus.map(gpu => gpu.id),
    ['h']
  );
});

test("the server's machine comes first, then other hosts by their names", () => {
  const told = new ServerDocument();
  const rows = ['other/b', 'other/a', 'host'].map(id => [id, { hostname: id.slice(-1) }]);

  told.apply(snapshot({ host: Object.fromEntries(rows) }));

  assert.deepEqual(
    told.hosts.map(host => host.id),
    ['host', 'other/a', 'other/b']
  );
  assert.equal(told.host.id, 'host');
});

test('frames and sections of a newer server do no harm', () => {
  const told = new ServerDocument();

  assert.equal(told.apply({ type: 'weather', at: 9 }), false);
  assert.equal(
    told.apply({ type: 'delta', changed: { moons: { m: { x: 1 } } }, gone: { suns: ['s'] } }),
    true
  );
  assert.equal(told.at, 0);
  assert.equal(told.host, null);
});

test('tasks that run come first, then those that wait, then those that ended, newest first', () => {
  const told = new ServerDocument();
  const task = (state, order, finished = null) => ({ state, order, finished });
  told.apply(
    snapshot({
      tasks: {
        old: task('finished', 5, 10),
        late: task('queued', 3),
        new: task('failed', 6, 20),
        run: task('running', 4),
        soon: task('queued', 2)
      }
    })
  );

  assert.deepEqual(
    told.tasks.map(({ key }) => key),
    ['run', 'soon', 'late', 'new', 'old']
  );
});

test('GPUs and ranks keep their own order', () => {
  const told = new ServerDocument();
  told.apply(
    snapshot({
      gpus: { x: { order: 10 }, y: { order: 2 } },
      engines: {
        'p/10': { pool: 'p', rank: 10 },
        'p/2': { pool: 'p', rank: 2 },
        'q/0': { pool: 'q', rank: 0 }
      }
    })
  );

  assert.deepEqual(
    told.gpus.map(gpu => gpu.id),
    ['y', 'x']
  );
  assert.deepEqual(
    told.enginesOf('p').map(engine => engine.rank),
    [2, 10]
  );
});

test('a history begins with what the server kept, and stays bounded', () => {
  const histories = new Histories();
  const history = {
    step_s: 2,
    gpus: { g: { utilization: Array.from({ length: 300 }, (_, i) => i) } }
  };
  const gpu = utilization => taken({ gpus: [{ id: 'g', utilization }] });

  histories.take({ type: 'snapshot', history }, gpu(299));
  assert.equal(histories.utilizationOf('g').length, LENGTH);
  assert.equal(histories.utilizationOf('g').at(-1), 299);
  histories.take({ type: 'delta' }, gpu(null));

  assert.equal(histories.utilizationOf('g').length, LENGTH);
  assert.equal(histories.utilizationOf('g').at(-1), null);
  assert.equal(histories.stepS, 2);
});

test("a task's curve has each value once, and goes with its task", () => {
  const histories = new Histories();
  const tasks = loss => taken({ tasks: [{ key: 't', metrics: { loss, accuracy: 0.5 } }] });

  [3, 3, 2, 1].forEach(loss => histories.take({ type: 'delta' }, tasks(loss)));
  assert.deepEqual(histories.metricOf('t'), [3, 2, 1]);
  histories.take({ type: 'delta' }, taken({}));

  assert.deepEqual(histories.metricOf('t'), []);
});

test('the death of an engine is remembered with its time, once, and not one that was over before', () => {
  const histories = new Histories();
  const engines = (at, a, b) =>
    taken({
      at,
      engines: [
        { id: 'p/0', pool: 'p', rank: 0, state: a },
        { id: 'p/1', pool: 'p', rank: 1, state: b }
      ]
    });

  [engines(5, 'busy', 'dead'), engines(6, 'dead', 'dead'), engines(7, 'dead', 'dead')].forEach(
    now => histories.take({ type: 'delta' }, now)
  );

  assert.deepEqual(histories.deaths, [{ at: 6, pool: 'p', rank: 0 }]);
});

test('trouble with the records of pools is told apart from trouble with the driver', () => {
  const told = new ServerDocument();
  assert.equal(told.poolsTrouble, null);

  told.apply(
    snapshot({ telemetry: { gpus: { trouble: 'no driver' }, pools: { trouble: 'no folder' } } })
  );

  assert.equal(told.telemetry.trouble, 'no driver');
  assert.equal(told.poolsTrouble, 'no folder');
});
