import type { IEngine, IFrame, IGpu, ITask } from './rows.js';

/** So many readings of one curve are kept. */
export const LENGTH = 120;
const MOST_DEATHS = 100;

/** An engine that died while somebody looked, in seconds since 1970. */
export interface IDeath {
  readonly at: number;
  readonly pool: string;
  readonly rank: number;
}

/** What a frame has brought. */
export interface ITaken {
  readonly at: number;
  readonly gpus: readonly IGpu[];
  readonly tasks: readonly ITask[];
  readonly engines: readonly IEngine[];
}

/** The last readings of GPUs and of tasks' first metrics, as the sparklines show them. */
export class Histories {
  /** Seconds between two readings of a GPU. */
  stepS = 1;

  /** The share of time in which something ran on a GPU, in percent, the oldest first. */
  utilizationOf(gpu: string): readonly (number | null)[] {
    return this._gpus.get(gpu) ?? [];
  }

  /** The first metric of a task, as it came. */
  metricOf(task: string): readonly number[] {
    return this._tasks.get(task) ?? [];
  }

  /** Take what a frame tells of the past, and one reading of everything that is there now. */
  take(frame: IFrame, { at, gpus, tasks, engines }: ITaken): void {
    if (frame.history) {
      this.stepS = frame.history.step_s;
      this._gpus.clear();
      for (const [id, { utilization }] of Object.entries(frame.history.gpus)) {
        this._gpus.set(id, utilization.slice(-LENGTH));
      }
    } else {
      gpus.forEach(gpu => push(this._gpus, gpu.id, gpu.utilization, LENGTH));
    }
    for (const { key, metrics } of tasks) {
      const value = Object.values(metrics)[0];
      if (value !== undefined && value !== this._tasks.get(key)?.at(-1)) {
        push(this._tasks, key, value, LENGTH);
      }
    }
    forget(this._gpus, new Set(gpus.map(gpu => gpu.id)));
    forget(this._tasks, new Set(tasks.map(task => task.key)));
    this._takeDeaths(at, engines);
  }

  /** The engines that died while somebody looked. */
  get deaths(): readonly IDeath[] {
    return this._deaths;
  }

  private _takeDeaths(at: number, engines: readonly IEngine[]): void {
    const before = this._states;
    this._states = new Map(engines.map(({ id, state }) => [id, state]));
    for (const { id, state, pool, rank } of engines) {
      if (state === 'dead' && ![undefined, 'dead'].includes(before.get(id))) {
        this._deaths = [...this._deaths.slice(1 - MOST_DEATHS), { at, pool, rank }];
      }
    }
  }

  private _deaths: readonly IDeath[] = [];
  private _states: ReadonlyMap<string, string> = new Map();
  private readonly _gpus = new Map<string, (number | null)[]>();
  private readonly _tasks = new Map<string, number[]>();
}

function push<T>(curves: Map<string, T[]>, id: string, value: T, length: number): void {
  const values = curves.get(id) ?? [];
  curves.set(id, [...values.slice(1 - length), value]);
}

function forget(curves: Map<string, unknown>, present: ReadonlySet<string>): void {
  for (const id of [...curves.keys()]) {
    if (!present.has(id)) {
      curves.delete(id);
    }
  }
}
