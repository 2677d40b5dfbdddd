/** What is used of packages that JupyterLab shares, without installing all that they need. */
declare module '@jupyterlab/notebook' {
  import type { ISessionContext, IWidgetTracker, MainAreaWidget } from '@jupyterlab/apputils';
  import type { IRenderMimeRegistry } from '@jupyterlab/rendermime';
  import type { Token } from '@lumino/coreutils';
  import type { Widget } from '@lumino/widgets';

  export type NotebookPanel = MainAreaWidget<
    Widget & { readonly rendermime: IRenderMimeRegistry }
  > & {
    readonly sessionContext: ISessionContext;
  };
  export type INotebookTracker = IWidgetTracker<NotebookPanel> & {
    readonly activeCell: {
      readonly model: { readonly sharedModel: { setSource(source: string): void } };
    } | null;
  };
  export const INotebookTracker: Token<INotebookTracker>;
}

/** The parts of the views that the sidebar draws with, too. */
declare module 'mgpu-views/parts.js' {
  export function make(tag: string, name?: string, ...children: (Node | string)[]): HTMLElement;
  export function setText(node: Node, text: string): void;
  export function setAttribute(node: Element, name: string, value: string | number | null): void;
  export function setShown(node: HTMLElement | SVGElement, isShown: boolean): void;
  export function metric(value: number | null | undefined, name?: string): string;
  export function duration(seconds: number | null): string;
  export function clock(epoch: number): string;
  export function seriesClass(number: number): string;
  export function translator(
    model: { get(name: string): unknown },
    table: Readonly<Record<string, string | string[]>>
  ): (key: string, values?: Record<string, string | number>) => string;
  export interface IKeyedRow<T> {
    node: Element;
    update(item: T): void;
    destroy?(): void;
  }
  export function keyed<T>(
    parent: HTMLElement,
    keyOf: (item: T) => string | number,
    create: (item: T) => IKeyedRow<T>
  ): { update(items: readonly T[]): void; destroy(): void };
}

declare module 'mgpu-views/marks.js' {
  export function makeState(): { node: HTMLElement; update(look: string, text: string): void };
  export function makeMeter(): {
    node: HTMLElement;
    update(shown: {
      name: string;
      label: string;
      percent: number | null;
      text: string;
      spoken: string;
      reservedPercent?: number;
    }): void;
  };
  export function makeProgress(): {
    node: HTMLElement;
    update(label: string, progress: number | null, text: string): void;
  };
  export function makeSparkline(): {
    node: SVGElement;
    update(
      values: readonly (number | null)[],
      options: { low?: number; high?: number; slots?: number; label(): string }
    ): void;
  };
}

declare module 'mgpu-views/chart.js' {
  export const CHART_WORDS: Readonly<Record<string, string | string[]>>;
  export interface IDrawing {
    title: string;
    lines: {
      key: string;
      label: string;
      number: number;
      xs: readonly number[];
      ys: readonly (number | null)[];
    }[];
    range?: readonly [number, number];
    endLabels?: boolean;
    writeX?(x: number): string;
    writeY?(y: number | null): string;
  }
  export function makeChart(
    t: (key: string, values?: Record<string, string | number>) => string,
    height?: number
  ): { node: HTMLElement; update(drawing: IDrawing): void; destroy(): void };
}
