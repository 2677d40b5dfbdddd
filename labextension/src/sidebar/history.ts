import type { JupyterFrontEnd } from '@jupyterlab/application';
import { MainAreaWidget } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { Message } from '@lumino/messaging';
import { Poll } from '@lumino/polling';
import { Widget } from '@lumino/widgets';
import type { makeChart } from 'mgpu-views/chart.js';

import { gpuIcon } from './icon.js';
import type { SidebarModel } from './model.js';
import type { IGpu } from './rows.js';

const MINUTES = 10;
const EVERY_MS = 2000;
const GIB = 2 ** 30;

type Field = 'utilization' | 'memory_used' | 'power' | 'temperature';
type Curve = readonly (number | null)[];

type IChart = ReturnType<typeof makeChart>;

interface IHistory {
  readonly step_s: number;
  readonly gpus: Readonly<Record<string, Readonly<Partial<Record<Field, Curve>>>>>;
}

/** Opens the history of the GPUs in the main area, once. */
export class HistoryOpener {
  constructor(
    private readonly _model: SidebarModel,
    private readonly _trans: TranslationBundle,
    private readonly _shell: JupyterFrontEnd.IShell
  ) {}

  open(): void {
    if (this._widget === null || this._widget.isDisposed) {
      const content = new HistoryCharts(this._model, this._trans);
      this._widget = new MainAreaWidget({ content });
      this._widget.id = 'jupyter-mgpu-history';
      this._widget.title.label = this._trans.__('GPU history');
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
    private readonly _trans: TranslationBundle
  ) {
    super();
    this.addClass('jp-mgpu-history');
    this.node.tabIndex = -1;
    this._poll = new Poll({
      auto: false,
      name: 'jupyter-mgpu:history',
      factory: async () => this._draw((await this._model.history(MINUTES)) as IHistory),
      frequency: { interval: EVERY_MS, backoff: true },
      standby: 'when-hidden'
    });
  }

  override dispose(): void {
    if (!this.isDisposed) {
      this._model.watch('history', null);
      this._poll.dispose();
      this._charts.forEach(chart => chart.destroy());
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

  /** Draw what has come; the code that draws is loaded when it is first needed. */
  private async _draw(history: IHistory): Promise<void> {
    const charts = await import('mgpu-views/chart.js');
    const { translator } = await import('mgpu-views/parts.js');
    if (this.isDisposed) {
      return;
    }
    if (this._charts.size === 0) {
      const t = translator({ get: () => null }, charts.CHART_WORDS);
      FIELDS.forEach(({ field }) => this._charts.set(field, charts.makeChart(t, 200)));
      const box = document.createElement('div');
      box.className = 'mgpu mgpu-charts';
      box.append(...[...this._charts.values()].map(chart => chart.node));
      this.node.append(box);
    }
    const { gpus } = this._model.document;
    for (const { field, factor, title, unit, digits } of FIELDS) {
      this._charts.get(field)?.update({
        title: title(this._trans),
        endLabels: true,
        lines: gpus.map(gpu => lineOf(gpu, history, field, factor)),
        writeX: x =>
          x > -0.02 ? this._trans.__('now') : this._trans.__('%1 min ago', (-x).toFixed(1)),
        writeY: y => (y === null ? this._trans.__('n/a') : `${y.toFixed(digits)} ${unit}`)
      });
    }
  }

  private readonly _charts = new Map<Field, IChart>();
  private readonly _poll: Poll;
}

interface IField {
  readonly field: Field;
  readonly factor: number;
  readonly unit: string;
  readonly digits: number;
  readonly title: (trans: TranslationBundle) => string;
}

const FIELDS: readonly IField[] = [
  {
    field: 'utilization',
    factor: 1,
    unit: '%',
    digits: 0,
    title: trans => trans.__('GPU busy in percent, by minutes')
  },
  {
    field: 'memory_used',
    factor: 1 / GIB,
    unit: 'GiB',
    digits: 1,
    title: trans => trans.__('memory used in GiB, by minutes')
  },
  {
    field: 'power',
    factor: 1,
    unit: 'W',
    digits: 0,
    title: trans => trans.__('power in W, by minutes')
  },
  {
    field: 'temperature',
    factor: 1,
    unit: '°C',
    digits: 0,
    title: trans => trans.__('temperature in °C, by minutes')
  }
];

function lineOf(
  gpu: IGpu,
  history: IHistory,
  field: Field,
  factor: number
): { key: string; label: string; number: number; xs: number[]; ys: (number | null)[] } {
  const all = history.gpus[gpu.id]?.[field] ?? [];
  const values = all.slice(
    Math.max(
      0,
      all.findIndex(value => value !== null)
    )
  );
  return {
    key: gpu.id,
    label: gpu.label,
    number: gpu.index ?? gpu.order,
    xs: values.map((_, place) => ((place + 1 - values.length) * history.step_s) / 60),
    ys: values.map(value => (value === null ? null : value * factor))
  };
}
