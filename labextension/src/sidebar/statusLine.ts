import type { TranslationBundle } from '@jupyterlab/translation';
import { makeState } from 'mgpu-views/marks.js';
import { make, setShown, setText } from 'mgpu-views/parts.js';

import { API_VERSION } from './connection.js';
import { COMMANDS, commandButton, type IShown, type ITools, refusalOf } from './shown.js';

/** How it stands with the server, with the next step where there is one. */
export function makeStatusLine(tools: ITools): { node: HTMLElement; update(shown: IShown): void } {
  const { trans } = tools;
  const state = makeState();
  const line = make('div', 'mgpu-link-line', state.node);
  const words = make('p', 'mgpu-notice');
  const command = make('code', 'mgpu-command');
  const retry = commandButton(tools, trans.__('Try now'), COMMANDS.retry, () => ({}));
  const resume = commandButton(tools, trans.__('Go on'), COMMANDS.pause, () => ({}));
  const node = make(
    'div',
    'mgpu-status',
    line,
    words,
    command,
    make('div', 'mgpu-buttons', retry, resume)
  );
  return {
    node,
    update(shown) {
      const { model } = shown;
      const told = model.isPaused || model.isAway ? paused(model, trans) : linkWords(shown, trans);
      state.update(told.look, told.short);
      const isUp = ['live', 'polling'].includes(model.link.kind);
      const long = [told.long ?? '', isUp ? refusalOf(model, trans) : ''].filter(Boolean).join(' ');
      setText(words, long);
      setShown(words, long !== '');
      setText(command, told.command ?? '');
      setShown(command, Boolean(told.command));
      const isBroken = ['lost', 'missing', 'forbidden', 'mismatch'].includes(model.link.kind);
      setShown(retry, isBroken && !model.isPaused);
      setShown(resume, model.isPaused);
    }
  };
}

interface ITold {
  /** A state that the glyphs know. */
  readonly look: string;
  readonly short: string;
  readonly long?: string;
  readonly command?: string;
}

function paused({ isPaused }: IShown['model'], trans: TranslationBundle): ITold {
  const long = isPaused
    ? trans.__('Nothing is read until you go on.')
    : trans.__('The page was not used for half an hour. A click goes on.');
  return { look: 'stopped', short: trans.__('paused'), long };
}

/** What the link is, in words. */
export function linkWords({ model, settings }: IShown, trans: TranslationBundle): ITold {
  const { link } = model;
  switch (link.kind) {
    case 'idle':
    case 'connecting':
      return { look: 'starting', short: trans.__('connecting') };
    case 'live':
      return {
        look: 'ready',
        short: trans.__(
          'live · %1 · every %2 s',
          model.document.host?.hostname ?? '',
          settings.interval
        )
      };
    case 'polling':
      return {
        look: 'ready',
        short: trans.__('every 5 s'),
        long: trans.__('A proxy lets no WebSocket through: the server is asked every 5 s instead.')
      };
    case 'lost':
      return {
        look: 'stale',
        short: trans.__('connection lost'),
        long: trans.__(
          'No connection to the server since %1. The next try is at %2.',
          time(link.since),
          time(link.retryAt)
        )
      };
    case 'missing':
      return {
        look: 'failed',
        short: trans.__('no server part'),
        long: trans.__(
          'The server part of jupyter_mgpu is not enabled on this Jupyter server, or not installed where it runs. Enable it, then start the server again:'
        ),
        command: 'jupyter server extension enable jupyter_mgpu'
      };
    case 'forbidden':
      return {
        look: 'failed',
        short: trans.__('not allowed'),
        long: trans.__(
          'This server does not let you see GPUs and pools. Log in again, or ask for the permission "read" on "jupyter_mgpu".'
        )
      };
    case 'mismatch':
      return {
        look: 'failed',
        short: trans.__('another version'),
        long: trans.__(
          'The server part is version %1 (messages %2), this page knows messages %3. Install the same version of jupyter_mgpu on the server, start it again and reload this page.',
          link.version,
          link.apiVersion,
          API_VERSION
        )
      };
  }
}

function time(ms: number): string {
  return new Date(ms).toLocaleTimeString();
}
