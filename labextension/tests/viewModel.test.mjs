import assert from 'node:assert/strict';
import { test } from 'node:test';

import { isViewState } from '../lib/tokens.js';
import { ViewModel } from '../lib/viewModel.js';

const state = (at, more = {}) => ({
  kind: 'pool',
  id: 'v',
  at,
  final: false,
  notice: null,
  ...more
});

test('a newer state is taken and told, an older one is not', () => {
  const model = new ViewModel(state(10));
  let changes = 0;
  model.on('change:state', () => (changes += 1));

  model.take(state(11, { running: 2 }));
  model.take(state(5, { running: 9 }));

  assert.equal(model.get('state').running, 2);
  assert.equal(changes, 1);
});

test('the last state is taken whatever its time', () => {
  const model = new ViewModel(state(10));

  model.take(state(9, { final: true }));

  assert.equal(model.isFinal, true);
  assert.equal(model.get('state').final, true);
});

test('what is not live looks final and says why, until it is live again', () => {
  const model = new ViewModel(state(10));

  model.setNotice('Not live: no kernel.');
  assert.equal(model.get('state').final, true);
  assert.equal(model.get('state').notice, 'Not live: no kernel.');
  model.setNotice('');

  assert.equal(model.get('state').final, false);
  assert.equal(model.get('state').notice, null);
});

test('a state that is final keeps its own notice', () => {
  const model = new ViewModel(state(10, { final: true, notice: 'The pool has ended.' }));

  model.setNotice('Not live: no kernel.');

  assert.equal(model.get('state').notice, 'The pool has ended.');
});

test('a listener that was taken away hears nothing, and one may take itself away', () => {
  const model = new ViewModel(state(10));
  const heard = [];
  const once = content => {
    heard.push(content.words);
    model.off('msg:custom', once);
  };
  model.on('msg:custom', once);

  model.tell({ words: 'first' });
  model.tell({ words: 'second' });

  assert.deepEqual(heard, ['first']);
});

test('only what has the form of a state is one', () => {
  assert.equal(isViewState(state(1)), true);
  for (const other of [
    null,
    undefined,
    3,
    'x',
    {},
    { kind: 'pool', id: 'v' },
    { ...state(1), at: 'now' }
  ]) {
    assert.equal(isViewState(other), false);
  }
});
