// Readings over time in the page: loaded once from the agent's memory, then extended by each snapshot.

export const NODE = 'node';

const ratioUsed = (memory) =>
  memory && memory.available_bytes !== null ? 1 - memory.available_bytes / memory.total_bytes : null;
const NODE_VALUES = {
  cpu_utilization_ratio: (node) => node.cpu && node.cpu.utilization_ratio,
  memory_used_ratio: (node) => ratioUsed(node.memory),
};
const GPU_VALUES = {
  gpu_utilization_ratio: (gpu) => gpu.utilization_ratio,
  gpu_memory_used_bytes: (gpu) => gpu.memory_used_bytes,
  gpu_power_watts: (gpu) => gpu.power_watts,
  gpu_temperature_celsius: (gpu) => gpu.temperature_celsius,
};

export function valuesNow(document, series) {
  if (NODE_VALUES[series]) return { [NODE]: NODE_VALUES[series](document.node) ?? null };
  const found = {};
  const gpus = document.gpus ? document.gpus.by_uuid : {};
  for (const uuid of Object.keys(gpus)) found[uuid] = gpus[uuid].up ? (GPU_VALUES[series](gpus[uuid]) ?? null) : null;
  return found;
}

const UNITS = { s: 1, m: 60, h: 3600, d: 86400 };

export const seconds = (range) => parseInt(range, 10) * (UNITS[range.at(-1)] || 1);

export class Recent {
  constructor(series, range, points) {
    this.series = series;
    this.range = range;
    this.points = points;
    this.step = 1;
    this.span = seconds(range);
    this.times = [];
    this.columns = new Map();
    this.open = null; // the step that is being averaged: { start, sums, counts }
    this.version = 0;
    this.kept = null;
    this.source = null;
    this.problem = '';
  }

  async load(end) {
    const ending = end ? `&end_unix_s=${end}` : '';
    const url = `/api/v1/history?series=${this.series}&range=${this.range}&points=${this.points}${ending}`;
    const answer = await fetch(url).catch(() => null);
    if (!answer) return;
    const found = await answer.json();
    this.problem = answer.ok ? '' : found.error;
    if (!answer.ok) return;
    const columns = Object.entries(found.values);
    const length = columns.length ? columns[0][1].length : 0;
    // Starts at the first reading: an agent that has just started has less than an hour.
    const known = ([, column]) => column.findIndex((value) => value !== null);
    const start = Math.min(length, ...columns.map(known).filter((at) => at >= 0));
    this.step = found.step_s;
    this.span = length * found.step_s;
    this.times = Array.from({ length: length - start }, (_, at) => found.start_unix_s + (start + at + 1) * found.step_s);
    this.columns = new Map(columns.map(([subject, column]) => [subject, column.slice(start)]));
    this.kept = found.kept;
    this.source = found.source;
    this.open = null;
    this.version += 1;
  }

  // Adds one snapshot; true when a step was completed.
  add(document) {
    const now = document.time_unix_s;
    const values = valuesNow(document, this.series);
    if (!this.open) this.open = { start: now, sums: {}, counts: {} };
    for (const subject of Object.keys(values)) {
      if (values[subject] === null) continue;
      this.open.sums[subject] = (this.open.sums[subject] || 0) + values[subject];
      this.open.counts[subject] = (this.open.counts[subject] || 0) + 1;
    }
    const last = this.times.length ? this.times[this.times.length - 1] : -Infinity;
    if (now - last < this.step * 0.95) return false;
    this.push(now, this.open);
    this.open = null;
    this.version += 1;
    return true;
  }

  push(now, { sums, counts }) {
    for (const subject of Object.keys(sums)) {
      if (!this.columns.has(subject)) this.columns.set(subject, new Array(this.times.length).fill(null));
    }
    this.times.push(now);
    for (const [subject, column] of this.columns) {
      column.push(counts[subject] ? sums[subject] / counts[subject] : null);
    }
    let old = 0;
    while (old < this.times.length && this.times[old] < now - this.span) old += 1;
    if (old) {
      this.times.splice(0, old);
      for (const column of this.columns.values()) column.splice(0, old);
    }
  }
}
