import assert from 'node:assert/strict';
import { test } from 'node:test';

import { ranges, secondsLeft, shortSizeOf, sizeOf, wholeSize } from '../lib/sidebar/units.js';

test('a size says its unit, with one decimal where there is room', () => {
  assert.equal(wholeSize(61.2 * 2 ** 30, 'GiB'), '61 GiB');
  assert.equal(sizeOf(61.25e9, 100e9, 'GB'), '61.3 / 100.0 GB');
  assert.equal(sizeOf(2 ** 30, 140 * 2 ** 30, 'GiB'), '1.0 / 140.0 GiB');
  assert.equal(shortSizeOf(61.2 * 2 ** 30, 140 * 2 ** 30, 'GiB'), '61/140 GiB');
});

test('numbers that follow one another are joined', () => {
  assert.equal(ranges([3, 1, 0, 2, 7]), '0-3,7');
  assert.equal(ranges([1, 3]), '1,3');
  assert.equal(ranges([1, 2]), '1,2');
  assert.equal(ranges([5, 5]), '5');
  assert.equal(ranges([]), '');
});

test('how long a task still takes follows from how far it came, and is not guessed before', () => {
  assert.equal(secondsLeft(0.25, 100, 110), 30);
  assert.equal(secondsLeft(1, 100, 110), 0);
  assert.equal(secondsLeft(0, 100, 110), null);
  assert.equal(secondsLeft(null, 100, 110), null);
  assert.equal(secondsLeft(0.5, null, 110), null);
  assert.equal(secondsLeft(0.5, 120, 110), null);
});
