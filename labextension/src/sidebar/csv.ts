import type { Field, IHistory } from './historyFields.js';
import type { IGpu, ITask } from './rows.js';

type Cell = string | number | null | undefined;

const READINGS: readonly Field[] = ['utilization', 'memory_used', 'power', 'temperature'];

/** All readings: a line for each GPU and time. Units are the server's: percent, bytes, watts, °C. */
export function csvOfHistory(gpus: readonly IGpu[], history: IHistory): string {
  const head = [
    'time',
    'gpu',
    'uuid',
    'busy_percent',
    'memory_used_bytes',
    'power_watts',
    'temperature_celsius'
  ];
  const rows = gpus.flatMap(gpu => {
    const curves = READINGS.map(field => history.gpus[gpu.id]?.[field] ?? []);
    const length = Math.max(...curves.map(curve => curve.length));
    return Array.from({ length }, (_, place): Cell[] => {
      const time = history.at + (place + 1 - length) * history.step_s;
      const values = curves.map(curve => curve[place + curve.length - length]);
      return [isoOf(time), gpu.label, gpu.id, ...values];
    }).filter(row => row.slice(3).some(value => typeof value === 'number'));
  });
  return csvOf([head, ...rows]);
}

/** All tasks, a line for each, with a column for each metric that one of them has reported. */
export function csvOfTasks(
  tasks: readonly ITask[],
  poolNames: ReadonlyMap<string, string>
): string {
  const metrics = [...new Set(tasks.flatMap(task => Object.keys(task.metrics)))];
  const head = [
    'name',
    'pool',
    'state',
    'rank',
    'created',
    'started',
    'finished',
    'progress',
    ...metrics,
    'error'
  ];
  const rows = tasks.map((task): Cell[] => [
    task.name,
    poolNames.get(task.pool) ?? task.pool,
    task.state,
    task.rank,
    ...[task.created, task.started, task.finished].map(time =>
      time === null ? null : isoOf(time)
    ),
    task.progress,
    ...metrics.map(name => task.metrics[name]),
    task.error
  ]);
  return csvOf([head, ...rows]);
}

/** Let the browser save a text as a file. */
export function saveAs(name: string, text: string): void {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([text], { type: 'text/csv' }));
  link.download = name;
  link.click();
  // The browser reads it after this turn.
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

function csvOf(rows: readonly (readonly Cell[])[]): string {
  const write = (cell: Cell): string => {
    const text = String(cell ?? '');
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map(row => `${row.map(write).join(',')}\r\n`).join('');
}

function isoOf(seconds: number): string {
  return new Date(seconds * 1000).toISOString();
}
