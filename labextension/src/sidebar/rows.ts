/** What the server tells, as flat rows by id. Sizes are bytes, times seconds since 1970; null is unknown. */

/** Why a field of a row is null, in words. */
export type Reasons = Readonly<Record<string, string>>;

export interface IHost {
  /** "host" for the server's machine. */
  readonly id: string;
  readonly hostname: string;
  readonly cpu: number | null;
  readonly memory_used: number | null;
  readonly memory_total: number | null;
  readonly reasons: Reasons;
  /** How old the readings of another host are where it does not report any more. */
  readonly stale_s?: number | null;
  /** Why another host has no GPU, or no new readings. */
  readonly trouble?: string | null;
}

export interface ITelemetry {
  /** Why there are no readings, with the next step. */
  readonly trouble: string | null;
  readonly interval_s: number;
}

export interface IGpuUser {
  readonly words: string;
  readonly pool: string | null;
  readonly pool_name: string | null;
  readonly rank: number | null;
  readonly memory: number | null;
  /** Whether it belongs to one of this user's pools. */
  readonly ours: boolean;
}

export interface IGpu {
  readonly id: string;
  readonly label: string;
  readonly index: number | null;
  readonly order: number;
  readonly name: string | null;
  readonly state: string;
  readonly state_words: string | null;
  /** How old its readings are where it is stale. */
  readonly stale_s: number | null;
  readonly utilization: number | null;
  readonly memory_used: number | null;
  readonly memory_total: number | null;
  readonly memory_reserved: number | null;
  readonly power: number | null;
  readonly power_limit: number | null;
  readonly temperature: number | null;
  readonly throttle: readonly string[] | null;
  readonly users: readonly IGpuUser[];
  readonly reasons: Reasons;
}

export interface IPool {
  readonly id: string;
  readonly name: string;
  readonly state: string;
  readonly state_words: string | null;
  /** Whether its kernel belongs to this server. */
  readonly here: boolean;
  readonly notebook: string | null;
  /** Where its notebook can be opened, if it can. */
  readonly notebook_path: string | null;
  readonly started: number | null;
  readonly num_engines: number;
  readonly running: number | null;
  readonly queued: number | null;
  readonly hidden_tasks: number;
  /** What starts such a pool in a notebook. */
  readonly code: string;
}

export interface IEngine {
  readonly id: string;
  readonly pool: string;
  readonly rank: number;
  readonly device: string;
  readonly state: string;
  readonly task: string | null;
  readonly proven: boolean | null;
  readonly rss: number | null;
}

export interface ITask {
  /** Unique among all pools. */
  readonly key: string;
  readonly pool: string;
  readonly id: string;
  readonly name: string;
  readonly kind: string;
  readonly state: string;
  readonly rank: number | null;
  readonly created: number | null;
  readonly started: number | null;
  readonly finished: number | null;
  readonly progress: number | null;
  readonly metrics: Readonly<Record<string, number>>;
  readonly error: string | null;
  readonly order: number;
}

/** What a server says of itself first. */
export interface IHello {
  readonly api_version: number;
  readonly server_version: string;
  readonly capabilities: { readonly look: boolean; readonly act: boolean };
  readonly poll_s: number;
}

type Row = Readonly<Record<string, unknown>>;
type Rows = Readonly<Record<string, Row>>;

/** A message of the server's stream. */
export interface IFrame {
  readonly type: string;
  readonly at?: number;
  readonly sections?: Readonly<Record<string, Rows>>;
  readonly changed?: Readonly<Record<string, Rows>>;
  readonly gone?: Readonly<Record<string, readonly string[]>>;
  readonly history?: {
    readonly step_s: number;
    readonly gpus: Readonly<Record<string, { readonly utilization: readonly (number | null)[] }>>;
  };
}
