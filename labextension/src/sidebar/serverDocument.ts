import type { IEngine, IFrame, IGpu, IHost, IPool, ITask, ITelemetry } from './rows.js';

type Row = Record<string, unknown>;

/**
 * What the server has told: sections of rows, kept up to date by its frames.
 *
 * Sections, rows and fields that are not known are kept and do no harm.
 */
export class ServerDocument {
  /** When the last frame was made, in seconds since 1970; 0 before the first. */
  at = 0;

  /** Take a frame; false if it says nothing of the rows. */
  apply(frame: IFrame): boolean {
    if (frame.type === 'snapshot') {
      this._sections.clear();
      this._assign(frame.sections ?? {});
    } else if (frame.type === 'delta') {
      this._assign(frame.changed ?? {});
      for (const [section, ids] of Object.entries(frame.gone ?? {})) {
        ids.forEach(id => this._sections.get(section)?.delete(id));
      }
    } else {
      return false;
    }
    this.at = frame.at ?? this.at;
    return true;
  }

  /** The server's machine. */
  get host(): IHost | null {
    return this.hosts.find(host => host.id === 'host') ?? null;
  }

  /** The server's machine, then the other hosts of pools by their names. */
  get hosts(): IHost[] {
    const rows = this._rows('host', id => ({ id })) as unknown as IHost[];
    const isOther = (host: IHost) => Number(host.id !== 'host');
    return rows.sort((a, b) => isOther(a) - isOther(b) || a.hostname.localeCompare(b.hostname));
  }

  get telemetry(): ITelemetry | null {
    const row = this._sections.get('telemetry')?.get('gpus');
    return (row as unknown as ITelemetry | undefined) ?? null;
  }

  /** Why pools may be missing or old, in words; null if all is well. */
  get poolsTrouble(): string | null {
    const row = this._sections.get('telemetry')?.get('pools');
    return (row as unknown as ITelemetry | undefined)?.trouble ?? null;
  }

  /** All GPUs, in their driver's order. */
  get gpus(): IGpu[] {
    const rows = this._rows('gpus', id => ({ id })) as unknown as IGpu[];
    return rows.sort((a, b) => a.order - b.order);
  }

  /** All pools, the oldest first. */
  get pools(): IPool[] {
    const rows = this._rows('pools', id => ({ id })) as unknown as IPool[];
    return rows.sort((a, b) => (a.started ?? 0) - (b.started ?? 0));
  }

  get engines(): IEngine[] {
    return this._rows('engines', id => ({ id })) as unknown as IEngine[];
  }

  /** The engines of a pool, by rank. */
  enginesOf(pool: string): IEngine[] {
    const engines = this.engines.filter(engine => engine.pool === pool);
    return engines.sort((a, b) => a.rank - b.rank);
  }

  /** Tasks that run, then those that wait, then those that have ended, the newest first. */
  get tasks(): ITask[] {
    const rows = this._rows('tasks', key => ({ key })) as unknown as ITask[];
    return rows.sort(
      (a, b) =>
        placeOf(a.state) - placeOf(b.state) ||
        (placeOf(a.state) === ENDED ? (b.finished ?? 0) - (a.finished ?? 0) : 0) ||
        a.order - b.order
    );
  }

  private _rows(section: string, name: (id: string) => Row): Row[] {
    const rows = this._sections.get(section) ?? new Map<string, Row>();
    return [...rows].map(([id, row]) => ({ ...row, ...name(id) }));
  }

  private _assign(sections: NonNullable<IFrame['sections']>): void {
    for (const [section, rows] of Object.entries(sections)) {
      const known = this._sections.get(section) ?? new Map<string, Row>();
      this._sections.set(section, known);
      for (const [id, fields] of Object.entries(rows)) {
        known.set(id, { ...known.get(id), ...fields });
      }
    }
  }

  private readonly _sections = new Map<string, Map<string, Row>>();
}

const ENDED = 2;

function placeOf(state: string): number {
  return state === 'running' ? 0 : state === 'queued' ? 1 : ENDED;
}
