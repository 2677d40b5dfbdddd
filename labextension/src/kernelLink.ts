import type { ISessionContext } from '@jupyterlab/apputils';
import type { Kernel, KernelMessage } from '@jupyterlab/services';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { JSONObject } from '@lumino/coreutils';
import type { IDisposable } from '@lumino/disposable';
import { Signal } from '@lumino/signaling';

import { isViewState, VIEW_MIME, VIEW_TARGET, type ViewMessage } from './tokens.js';
import type { ViewModel } from './viewModel.js';

/**
 * Keeps a view's model up to date from the kernel of its notebook, while somebody sees the view.
 *
 * A comm serves it. What ends that (another kernel, a restart, a death, a closed comm) is said in the
 * model's notice; only a kernel that is newly there is asked again.
 */
export class KernelLink implements IDisposable {
  constructor(options: KernelLink.IOptions) {
    this._context = options.sessionContext;
    this._model = options.model;
    this._trans = options.trans;
    this._onBundle = options.onBundle;
    this._isVisible = options.isVisible;
    this._model.sender = content => this._send(content);
    this._context.kernelChanged.connect(this._open, this);
    this._context.statusChanged.connect(this._onStatus, this);
    this._context.iopubMessage.connect(this._onIopub, this);
    this._context.connectionStatusChanged.connect(this._onConnection, this);
    void this._context.ready.then(() => this._open());
    this._open();
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  /** Tell the kernel whether the view can be seen: it sends nothing to one that cannot. */
  setVisible(isVisible: boolean): void {
    if (isVisible !== this._isVisible) {
      this._isVisible = isVisible;
      this._send({ visible: isVisible });
    }
  }

  /** End the link where the state is final: nothing can come any more. */
  settle(): void {
    if (this._model.isFinal) {
      this._close();
    }
  }

  dispose(): void {
    if (this._isDisposed) {
      return;
    }
    this._isDisposed = true;
    this._close();
    this._model.sender = null;
    Signal.clearData(this);
  }

  private _open(): void {
    if (this._isDisposed || this._model.isFinal) {
      return;
    }
    const kernel = this._context.session?.kernel ?? null;
    if (kernel === null) {
      this._close();
      this._say(this._context.isReady ? 'none' : 'connecting');
      return;
    }
    if (kernel === this._kernel) {
      return;
    }
    this._close();
    this._kernel = kernel;
    if (!kernel.handleComms || ENDED.has(kernel.status)) {
      this._say(kernel.handleComms ? 'ended' : 'noComms');
      return;
    }
    this._say('');
    const comm = kernel.createComm(VIEW_TARGET);
    comm.onMsg = message => this._onMessage(message);
    comm.onClose = () => this._lose('gone');
    this._comm = comm;
    void subshellOf(comm, kernel).then(() => this._openComm(comm));
  }

  private _openComm(comm: Kernel.IComm): void {
    if (this._comm !== comm || comm.isDisposed) {
      return;
    }
    this._isOpen = true;
    comm.open({ id: this._model.id });
    if (!this._isVisible) {
      this._send({ visible: false });
    }
  }

  private _onMessage(message: KernelMessage.ICommMsgMsg): void {
    const content = message.content.data as ViewMessage;
    this._process ??= message.header.session;
    this._listen();
    if (isViewState(content.state)) {
      this._model.take(content.state);
      this.settle();
    } else if (content.gone) {
      this._lose('gone');
    } else if (isBundle(content.bundle)) {
      this._onBundle(content.bundle);
    } else if (content.ping) {
      this._send({ visible: this._isVisible });
    } else {
      this._model.tell(content);
    }
  }

  private _onStatus(_: ISessionContext, status: Kernel.Status): void {
    if (status === 'restarting' || status === 'autorestarting') {
      this._lose('restarted');
    } else if (ENDED.has(status)) {
      this._lose('ended');
    }
  }

  /** Another page's restart is told by nothing but another session in what the kernel says. */
  private _onIopub(_: ISessionContext, message: KernelMessage.IMessage): void {
    if (this._process !== null && message.header.session !== this._process && isOfKernel(message)) {
      this._lose('restarted');
    }
  }

  /** Ask the kernel something once it has been silent: a new one says by it that it is another. */
  private _listen(): void {
    clearTimeout(this._silence);
    const kernel = this._kernel;
    this._silence = setTimeout(() => {
      if (this._comm !== null) {
        kernel?.requestKernelInfo().catch(() => undefined);
      }
    }, SILENCE_MS);
  }

  private _onConnection(_: ISessionContext, status: Kernel.ConnectionStatus): void {
    if (this._comm === null) {
      return;
    }
    this._say(status === 'connected' ? '' : 'disconnected');
    if (status === 'connected') {
      this._send({ visible: this._isVisible });
    }
  }

  /** The kernel that was asked has no such view any more; it is not asked again. */
  private _lose(why: Why): void {
    if (this._comm !== null && !this._isDisposed) {
      this._comm = null;
      this._say(why);
    }
  }

  private _close(): void {
    const comm = this._comm;
    const isOpen = this._isOpen;
    this._comm = null;
    this._kernel = null;
    this._process = null;
    clearTimeout(this._silence);
    this._isOpen = false;
    if (comm !== null && !comm.isDisposed) {
      comm.onClose = () => undefined;
      if (isOpen) {
        comm.close();
      } else {
        comm.dispose();
      }
    }
  }

  private _send(content: ViewMessage): void {
    if (this._comm !== null && this._isOpen && !this._comm.isDisposed) {
      this._comm.send(content as JSONObject);
    }
  }

  private _say(why: Why | ''): void {
    this._model.setNotice(why && wordsOf(why, this._model.at, this._trans));
  }

  private _comm: Kernel.IComm | null = null;
  private _kernel: Kernel.IKernelConnection | null = null;
  /** The session of the messages of the process that serves the view. */
  private _process: string | null = null;
  private _silence: ReturnType<typeof setTimeout> | undefined;
  private _isOpen = false;
  private _isVisible: boolean;
  private _isDisposed = false;
  private readonly _context: ISessionContext;
  private readonly _model: ViewModel;
  private readonly _trans: TranslationBundle;
  private readonly _onBundle: (bundle: JSONObject) => void;
}

export namespace KernelLink {
  export interface IOptions {
    readonly sessionContext: ISessionContext;
    readonly model: ViewModel;
    readonly trans: TranslationBundle;
    /** Whether the view can be seen now. */
    readonly isVisible: boolean;
    /** Takes what the output is to hold from now on, as the notebook saves it. */
    readonly onBundle: (bundle: JSONObject) => void;
  }
}

type Why = 'connecting' | 'none' | 'ended' | 'restarted' | 'gone' | 'disconnected' | 'noComms';

const SUBSHELL_MS = 2000;
const SILENCE_MS = 10_000;

/**
 * Wait until a comm's messages go where they are handled while a cell runs. JupyterLab makes that
 * subshell in the background, and a comm that is opened before waits for the running cell.
 */
async function subshellOf(comm: Kernel.IComm, kernel: Kernel.IKernelConnection): Promise<void> {
  const { subshellStarted } = comm as { subshellStarted?: Promise<void> };
  await kernel.info;
  if (subshellStarted && kernel.supportsSubshells && comm.commsOverSubshells !== 'disabled') {
    const late = new Promise<void>(resolve => setTimeout(resolve, SUBSHELL_MS));
    await Promise.race([subshellStarted, late]).catch(() => undefined);
  }
}

/** Whether the kernel itself has sent a message; the server puts some of its own among them. */
function isOfKernel({ header, content }: KernelMessage.IMessage): boolean {
  const { execution_state: state } = content as { execution_state?: string };
  return state === undefined
    ? (header.msg_type as string) === 'iopub_welcome'
    : ['starting', 'busy', 'idle'].includes(state);
}

function isBundle(data: unknown): data is JSONObject {
  return typeof data === 'object' && data !== null && VIEW_MIME in data;
}

const ENDED: ReadonlySet<string> = new Set(['dead', 'terminating']);

function wordsOf(why: Why, atS: number, trans: TranslationBundle): string {
  const moment = new Date(atS * 1000);
  const isToday = moment.toDateString() === new Date().toDateString();
  const time = isToday ? moment.toLocaleTimeString() : moment.toLocaleString();
  switch (why) {
    case 'connecting':
      return trans.__('Connecting to the kernel. This is the state of %1.', time);
    case 'none':
      return trans.__('Not live since %1: no kernel is running.', time);
    case 'ended':
      return trans.__('Not live since %1: the kernel has ended.', time);
    case 'restarted':
      return trans.__('Not live since %1: the kernel was restarted.', time);
    case 'gone':
      return trans.__('Not live since %1: this kernel does not have it any more.', time);
    case 'disconnected':
      return trans.__('Not live since %1: the connection to the server is lost.', time);
    case 'noComms':
      return trans.__('Not live since %1: another view of this notebook holds the kernel.', time);
  }
}
