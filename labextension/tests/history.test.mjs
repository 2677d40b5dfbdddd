import assert from 'node:assert/strict';
import { test } from 'node:test';

import { csvOfHistory, csvOfTasks } from '../lib/sidebar/csv.js';
import { fieldsOf, lineOf } from '../lib/sidebar/historyFields.js';
import { trans } from './trans.mjs';

const gpu = { id: 'GPU-a', label: 'GPU 1', index: 1, order: 0 };
const history = {
  at: 1000,
  step_s: 60,
  gpus: { 'GPU-a': { utilization: [null, 10, null, 30, null], memory_used: [0, 1, 2, 3, 2 ** 30] } }
};
const [busy, memory, power] = fieldsOf(trans);
const span = { from: 0, to: 1000 };

test('a curve begins and ends with a reading; a gap within it stays one', () => {
  const line = lineOf(gpu, history, busy, span);

  assert.deepEqual(line.xs, [-3, -2, -1]);
  assert.deepEqual(line.ys, [10, null, 30]);
});

test('a span is cut out, in its unit, and what was never read is empty', () => {
  const line = lineOf(gpu, history, memory, { from: 940, to: 1000 });

  assert.deepEqual(line.xs, [-1, 0]);
  assert.deepEqual(line.ys, [3 / 2 ** 30, 1]);
  assert.deepEqual(lineOf(gpu, history, power, span).ys, []);
});

test('a file of readings has a line for each time and GPU, and nothing for what is unknown', () => {
  const [head, ...lines] = csvOfHistory([gpu], history).trimEnd().split('\r\n');

  assert.equal(
    head,
    'time,gpu,uuid,busy_percent,memory_used_bytes,power_watts,temperature_celsius'
  );
  assert.equal(lines.length, 5);
  assert.equal(lines[0], '1970-01-01T00:12:40.000Z,GPU 1,GPU-a,,0,,');
  assert.equal(lines[4], '1970-01-01T00:16:40.000Z,GPU 1,GPU-a,,1073741824,,');
});

test('a file of tasks has a column for each metric, and quotes what needs it', () => {
  const task = more => ({
    name: 'a',
    pool: 'p',
    state: 'failed',
    rank: null,
    created: 0,
    started: null,
    finished: null,
    progress: 0.5,
    metrics: {},
    error: null,
    ...more
  });
  const tasks = [
    task({ name: 'say "x", y', metrics: { loss: 0.5 } }),
    task({ error: 'two\nlines', metrics: { accuracy: 1 } })
  ];

  const text = csvOfTasks(tasks, new Map([['p', 'main']]));

  assert.equal(
    text,
    'name,pool,state,rank,created,started,finished,progress,loss,accuracy,error\r\n' +
      '"say ""x"", y",main,failed,,1970-01-01T00:00:00.000Z,,,0.5,0.5,,\r\n' +
      'a,main,failed,,1970-01-01T00:00:00.000Z,,,0.5,,1,"two\nlines"\r\n'
  );
});
