import assert from 'node:assert/strict';
import { test } from 'node:test';

import { lookOf, memoryOf, sparkSentence, titleOf, whoWords } from '../lib/sidebar/gpuWords.js';
import { memoryWords, percentWords } from '../lib/sidebar/meters.js';
import { trans } from './trans.mjs';

const GIB = 2 ** 30;
const gpu = more => ({
  id: 'GPU-a',
  label: 'GPU 1',
  index: 1,
  order: 1,
  name: 'NVIDIA H200',
  state: 'ok',
  state_words: null,
  stale_s: null,
  utilization: 0,
  memory_used: 2 * GIB,
  memory_total: 80 * GIB,
  memory_reserved: null,
  power: 100,
  power_limit: 700,
  temperature: 40,
  throttle: [],
  users: [],
  reasons: {},
  ...more
});
const words = (more, warnPercent = 90) => lookOf(gpu(more), warnPercent, trans).words;

test('a state is told in words, the worst first', () => {
  assert.equal(words({}), 'idle');
  assert.equal(words({ utilization: 3 }), 'busy');
  assert.equal(words({ memory_used: 72 * GIB }), 'memory nearly full');
  assert.equal(words({ memory_used: 72 * GIB }, null), 'idle');
  assert.equal(words({ memory_used: 72 * GIB, throttle: ['power cap'] }), 'slowed: power cap');
  assert.equal(words({ state: 'stale', stale_s: 12, throttle: ['power cap'] }), 'stale 12 s');
  assert.equal(words({ state: 'lost' }), 'lost');
  assert.equal(words({ state: 'divided' }), 'divided');
});

test('every reading may be unknown, alone, and none of them is shown as zero', () => {
  const fields = ['utilization', 'memory_used', 'memory_total', 'memory_reserved', 'power'];
  for (const field of [...fields, 'power_limit', 'temperature', 'throttle', 'index', 'name']) {
    const one = gpu({ [field]: null, reasons: { [field]: 'not supported' } });
    const memory = memoryWords(memoryOf(one), 'GiB', trans);
    const busy = percentWords(one.utilization, one.reasons.utilization, trans);

    assert.notEqual(lookOf(one, 90, trans).words, '');
    assert.match(titleOf(one, trans), new RegExp(`${field}: not supported`));
    assert.equal(busy.text, field === 'utilization' ? 'n/a' : '0 %');
    const isUnknown = ['memory_used', 'memory_total'].includes(field);
    assert.equal(memory.text, isUnknown ? 'n/a' : '2.0 / 80.0 GiB');
    assert.equal(memory.percent, isUnknown ? null : 2.5);
    assert.equal(memory.spoken.includes('not supported'), isUnknown);
  }
});

test('a MIG instance has no share of time, and says why', () => {
  const busy = percentWords(null, 'the driver reports none for MIG instances', trans);

  assert.deepEqual([busy.percent, busy.text], [null, 'n/a']);
  assert.equal(busy.spoken, 'not available: the driver reports none for MIG instances');
});

test('what the driver keeps is told apart, and the bar is of what is used', () => {
  const memory = memoryWords(memoryOf(gpu({ memory_reserved: 8 * GIB })), 'GiB', trans);

  assert.deepEqual([memory.percent, memory.reservedPercent], [2.5, 10]);
  assert.equal(memory.spoken, '2.0 / 80.0 GiB, the driver reserves 8.0 / 80.0 GiB');
});

test('who uses a GPU is a rank of ours by name, or what the driver can tell', () => {
  const ours = { ours: true, pool: 'p', pool_name: 'main', rank: 3, words: '', memory: null };
  const other = { ours: false, pool: null, pool_name: null, rank: null, words: 'ann: python' };

  assert.equal(
    whoWords(gpu({ users: [ours, other] }), false, trans),
    'rank 3 of main, ann: python'
  );
  assert.equal(whoWords(gpu({ users: [ours, other] }), true, trans), 'rank 3');
  assert.equal(whoWords(gpu({ users: [other] }), true, trans), 'others');
  assert.equal(whoWords(gpu({}), false, trans), 'no process is listed');
  assert.equal(
    whoWords(gpu({ state: 'lost', state_words: 'It fell off.' }), false, trans),
    'It fell off.'
  );
});

test('a sparkline is one sentence', () => {
  assert.equal(
    sparkSentence('GPU 1 busy', [null, 5, 97, 92], 1, trans),
    'GPU 1 busy, last 4 s: now 92 %, lowest 5 %, highest 97 %'
  );
  assert.equal(sparkSentence('GPU 1 busy', [], 1, trans), 'GPU 1 busy: no readings yet');
});
