import type { JupyterFrontEnd } from '@jupyterlab/application';
import { MainAreaWidget } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { Message } from '@lumino/messaging';
import { Poll } from '@lumino/polling';
import { Widget } from '@lumino/widgets';
import { make, setShown } from 'mgpu-views/parts.js';

import { HistoryChart } from './historyChart.js';
import { fieldsOf, type IHistory, type ISpan, lineOf } from './historyFields.js';
import { marksOf } from './historyMarks.js';
import { gpuIcon } from './icon.js';
import type { SidebarModel } from './model.js';
import { COMMANDS, commandButton, type ITools } from './shown.js';

/** As long as the server remembers. */
export const MOST_MINUTES = 10;
const RANGES_MINUTES = [1, 5, MOST_MINUTES];
const EVERY_MS = 2000;
const TABLE_EVERY_S = 10;

/** Opens the history of the GPUs in the main area, once. */
export class HistoryOpener {
  constructor(
    private readonly _model: SidebarModel,
    private readonly _tools: ITools,
    private readonly _shell: JupyterFrontEnd.IShell
  ) {}

  open(): void {
    if (this._widget === null || this._widget.isDisposed) {
      const content = new HistoryCharts(this._model, this._tools);
      this._widget = new MainAreaWidget({ content });
      this._widget.id = 'jupyter-mgpu-history';
      this._widget.title.label = this._tools.trans.__('GPU history');
      this._widget.title.icon = gpuIcon;
      this._widget.title.closable = true;
      this._shell.add(this._widget, 'main');
    }
    this._shell.activateById(this._widget.id);
  }

  private _widget: MainAreaWidget<HistoryCharts> | null = null;
}

/** One chart for each kind of reading, with a line for each GPU, of the last minutes. */
class HistoryCharts extends Widget {
  constructor(
    private readonly _model: SidebarModel,
    private readonly _tools: ITools
  ) {
    super();
    this.addClass('jp-mgpu-history');
    this.node.tabIndex = -1;
    const { trans } = _tools;
    this._table = this._button(trans.__('View as table'), () => {
      this._isTable = !this._isTable;
      this._table.setAttribute('aria-pressed', String(this._isTable));
      this._draw(true);
    });
    this._table.classList.add('mgpu-toggle');
    this._table.setAttribute('aria-pressed', 'false');
    this._all = this._button(trans.__('Show all'), () => this._zoomTo(null));
    const save = commandButton(_tools, trans.__('Save as CSV'), COMMANDS.exportHistory, () => ({}));
    const controls = make('div', 'mgpu-controls', this._ranges(), this._table, save, this._all);
    const hint = make(
      'p',
      'mgpu-hint',
      trans.__(
        'Times are minutes before now. Drag to enlarge a span; a double click shows all again.'
      )
    );
    this.node.append(make('div', 'mgpu', controls, hint, this._box));
    this._poll = new Poll({
      auto: false,
      name: 'jupyter-mgpu:history',
      factory: () => this._read(),
      frequency: { interval: EVERY_MS, backoff: true },
      standby: 'when-hidden'
    });
  }

  override dispose(): void {
    if (!this.isDisposed) {
      this._model.watch('history', null);
      this._poll.dispose();
      this._charts.forEach(({ chart }) => chart.dispose());
      super.dispose();
    }
  }

  protected override onAfterShow(_: Message): void {
    this._model.watch('history', { intervalS: 1 });
    void this._poll.start();
  }

  protected override onAfterHide(_: Message): void {
    this._model.watch('history', null);
    void this._poll.stop();
  }

  private async _read(): Promise<void> {
    this._history = (await this._model.history(MOST_MINUTES)) as IHistory;
    if (!this._charts.length) {
      await this._load();
    }
    this._draw();
  }

  /** Load the code that draws, when it is first needed. */
  private async _load(): Promise<void> {
    const { CHART_WORDS, makeChart } = await import('mgpu-views/chart.js');
    const { translator } = await import('mgpu-views/parts.js');
    // Hidden and shown again while the code was loaded, it was read twice.
    if (this.isDisposed || this._charts.length) {
      return;
    }
    const { trans } = this._tools;
    const words = translator({ get: () => null }, { ...CHART_WORDS, ...chartWords(trans) });
    const together = {
      onZoom: (span: ISpan | null) => this._zoomTo(span),
      onPoint: (from: HistoryChart, share: number | null) =>
        this._charts.forEach(({ chart }) => chart !== from && chart.point(share))
    };
    this._charts = fieldsOf(trans).map(field => ({
      field,
      chart: new HistoryChart(field, makeChart(words, 200), trans, together)
    }));
    this._box.append(...this._charts.map(({ chart }) => chart.node));
  }

  private _draw(isAsked = false): void {
    const history = this._history;
    if (history === null || this.isDisposed) {
      return;
    }
    const now = history.at;
    const span = this._zoom ?? { from: now - 60 * this._minutes, to: now };
    const { gpus } = this._model.document;
    const marks = marksOf(this._model, this._tools.trans);
    setShown(this._all, this._zoom !== null);
    const isRenewed = isAsked || now - this._renewedAt >= TABLE_EVERY_S;
    this._renewedAt = isRenewed ? now : this._renewedAt;
    for (const { field, chart } of this._charts) {
      const lines = gpus.map(gpu => lineOf(gpu, history, field, span));
      chart.update({ lines, marks, now, isTable: this._isTable, isRenewed });
    }
  }

  private _zoomTo(span: ISpan | null): void {
    this._zoom = span;
    this._draw(true);
  }

  private _ranges(): HTMLElement {
    const { trans } = this._tools;
    const select = document.createElement('select');
    select.className = 'mgpu-select';
    for (const minutes of RANGES_MINUTES) {
      select.add(new Option(trans._n('last minute', 'last %1 minutes', minutes), String(minutes)));
    }
    select.value = String(this._minutes);
    select.addEventListener('change', () => {
      this._minutes = Number(select.value);
      this._zoomTo(null);
    });
    return make('label', '', trans.__('Show'), select);
  }

  private _button(words: string, onPress: () => void): HTMLButtonElement {
    const button = document.createElement('button');
    button.type = 'button';
    button.className = 'mgpu-button';
    button.textContent = words;
    button.addEventListener('click', onPress);
    return button;
  }

  private _minutes = MOST_MINUTES;
  private _isTable = false;
  private _renewedAt = 0;
  private _zoom: ISpan | null = null;
  private _history: IHistory | null = null;
  private _charts: {
    readonly field: ReturnType<typeof fieldsOf>[number];
    readonly chart: HistoryChart;
  }[] = [];
  private readonly _box = make('div', 'mgpu-charts');
  private readonly _table: HTMLButtonElement;
  private readonly _all: HTMLButtonElement;
  private readonly _poll: Poll;
}

/** The words of the charts; those in braces are filled in by them. */
function chartWords(trans: TranslationBundle): Record<string, string | string[]> {
  return {
    cursor: trans.__('{title}: move along the time'),
    summary: trans.__('{title}: {lines}'),
    line: trans.__('{label} from {first} to {last}, lowest {low}, highest {high}'),
    noValues: trans.__('No readings yet.'),
    gaps: '' // they are seen
  };
}
