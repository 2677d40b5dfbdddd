import type { ITranslator } from '@jupyterlab/translation';
import { CommandToolbarButton, SidePanel } from '@jupyterlab/ui-components';
import type { Message } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';

import { makeGpuList } from './gpuList.js';
import { gpuIcon } from './icon.js';
import type { SidebarModel } from './model.js';
import { makePoolList } from './poolList.js';
import type { ISidebarSettings, Section } from './settings.js';
import { COMMANDS, type IShown, type ITools } from './shown.js';
import { makeStatusLine } from './statusLine.js';
import { makeTaskList } from './taskList.js';

interface IPart {
  readonly node: HTMLElement;
  update(shown: IShown): void;
  dispose?(): void;
}

/** The sidebar: GPUs, pools and background tasks. It wants news while it can be seen. */
export class GpuPanel extends SidePanel {
  static readonly ID = 'jupyter-mgpu-panel';

  constructor(private readonly _options: GpuPanel.IOptions) {
    super({ translator: _options.translator });
    const { tools, settings } = _options;
    const { trans } = tools;
    this.id = GpuPanel.ID;
    this.addClass('jp-mgpu-panel');
    this.title.icon = gpuIcon;
    this.title.caption = trans.__('GPU pools');
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', trans.__('GPU pools'));
    this._settings = settings;
    this._status = makeStatusLine(tools);
    this.header.addWidget(new Widget({ node: wrap(this._status.node) }));
    for (const id of [COMMANDS.pause, COMMANDS.history, COMMANDS.settings]) {
      const button = new CommandToolbarButton({ commands: tools.commands, id, label: '' });
      this.toolbar.addItem(id.replace(':', '-'), button);
    }
    this._add('gpus', trans.__('GPUs'), makeGpuList(tools));
    this._add('pools', trans.__('Pools'), makePoolList(tools));
    this._add('tasks', trans.__('Background tasks'), makeTaskList(tools));
    this._place();
    _options.model.changed.connect(this._draw, this);
    this._draw();
  }

  set settings(settings: ISidebarSettings) {
    this._settings = settings;
    this._place();
    this._watch();
    this._draw();
  }

  override dispose(): void {
    if (!this.isDisposed) {
      this._options.model.watch(GpuPanel.ID, null);
      this._options.model.changed.disconnect(this._draw, this);
      this._parts.forEach(({ part }) => part.dispose?.());
      this._options.tools.menu.dispose();
      super.dispose();
    }
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this._watch();
    this._draw();
  }

  protected override onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this._watch();
  }

  protected override onAfterHide(message: Message): void {
    super.onAfterHide(message);
    this._watch();
  }

  protected override onBeforeDetach(message: Message): void {
    this._options.model.watch(GpuPanel.ID, null);
    super.onBeforeDetach(message);
  }

  private _watch(): void {
    const watcher = this.isVisible ? { intervalS: this._settings.interval } : null;
    this._options.model.watch(GpuPanel.ID, watcher);
  }

  private _add(id: Section, label: string, part: IPart): void {
    const widget = new Widget({ node: wrap(part.node) });
    widget.title.label = label;
    this._parts.set(id, { part, widget, label });
  }

  /** Show the sections that the settings name, in their order. */
  private _place(): void {
    let place = 0;
    for (const [id, { widget }] of this._parts) {
      const isShown = this._settings.sections.includes(id);
      if (isShown && widget.parent === null) {
        this.insertWidget(place, widget);
      } else if (!isShown) {
        widget.parent = null;
      }
      place += Number(isShown);
    }
  }

  private _draw(): void {
    if (!this.isVisible) {
      return;
    }
    const { model } = this._options;
    const shown = { model, settings: this._settings };
    this._status.update(shown);
    const { gpus, pools, tasks } = model.document;
    const counts = { gpus: gpus.length, pools: pools.length, tasks: tasks.length };
    for (const [id, { part, widget, label }] of this._parts) {
      const title = counts[id] ? `${label} (${counts[id]})` : label;
      if (widget.title.label !== title) {
        widget.title.label = title;
      }
      part.update(shown);
    }
    // What was drawn before the connection was lost is old.
    this.toggleClass(
      'jp-mod-old',
      model.isPaused || !['live', 'polling'].includes(model.link.kind)
    );
  }

  private _settings: ISidebarSettings;
  private readonly _status: IPart;
  private readonly _parts = new Map<Section, { part: IPart; widget: Widget; label: string }>();
}

export namespace GpuPanel {
  export interface IOptions {
    readonly model: SidebarModel;
    readonly settings: ISidebarSettings;
    readonly tools: ITools;
    readonly translator: ITranslator;
  }
}

function wrap(node: HTMLElement): HTMLElement {
  const outer = document.createElement('div');
  outer.className = 'mgpu';
  outer.append(node);
  return outer;
}
