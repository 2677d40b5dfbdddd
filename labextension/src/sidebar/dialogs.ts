import { Dialog, InputDialog, Notification, showDialog } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import { Widget } from '@lumino/widgets';

import type { IOutcome } from './model.js';

/** Ask before something is lost; what keeps everything is the default. */
export async function confirmed(
  trans: TranslationBundle,
  title: string,
  question: string,
  yes: string
): Promise<boolean> {
  const result = await showDialog({
    title,
    body: question,
    buttons: [Dialog.cancelButton({ label: trans.__('Keep') }), Dialog.warnButton({ label: yes })],
    defaultButton: 0
  });
  return result.button.accept;
}

/** Let one of several be chosen; the only one is chosen without asking. */
export async function choose<T extends { readonly name: string }>(
  title: string,
  items: readonly T[]
): Promise<T | null> {
  if (items.length <= 1) {
    return items[0] ?? null;
  }
  const labels = items.map(({ name }, place) => `${place + 1}: ${name}`);
  const result = await InputDialog.getItem({ title, items: labels });
  return result.value === null ? null : (items[labels.indexOf(result.value)] ?? null);
}

/** Show a long text, at its end. */
export async function showText(
  trans: TranslationBundle,
  title: string,
  text: string
): Promise<void> {
  const pre = document.createElement('pre');
  pre.className = 'jp-mgpu-log';
  pre.tabIndex = 0;
  pre.textContent = text || trans.__('It has printed nothing.');
  const body = new Widget({ node: pre });
  const shown = showDialog({
    title,
    body,
    buttons: [Dialog.okButton({ label: trans.__('Close') })]
  });
  requestAnimationFrame(() => {
    pre.scrollTop = pre.scrollHeight;
  });
  await shown;
}

/** Say what became of an action. */
export function tell({ ok, words }: IOutcome): void {
  Notification.emit(words, ok ? 'success' : 'error', { autoClose: ok ? 3000 : false });
}
