// Readings over time in the page: loaded once from the agent, then extended by each snapshot.

export const NODE = 'node';

const ratioUsed = (memory) =>
  memory && memory.available_bytes !== null ? 1 - memory.available_bytes / memory.total_bytes : null;
const NODE_VALUES = {
  cpu_utilization_ratio: (node) => node.cpu && node.cpu.utilization_ratio,
  memory_used_ratio: (node) => ratioUsed(node.memory),
};
const GPU_VALUES = {
  gpu_utilization_ratio: (gpu) => gpu.use_ratio,
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

let made = 0;

export class Recent {
  // fixed: { from, to } for a range that snapshots do not extend, or null for one that ends now
  constructor(series, range, points, fixed = null) {
    this.id = made += 1;
    this.series = series;
    this.range = fixed ? `${Math.round(fixed.to - fixed.from)}s` : range;
    this.points = points;
    this.fixed = fixed;
    this.step = 1;
    this.span = seconds(this.range);
    this.times = [];
    this.columns = new Map();
    this.open = null; // the step that is being averaged: { start, sums, counts }
    this.version = 0;
    this.kept = null;
    this.source = null;
    this.problem = '';
    this.summed = new Map();
  }

  async load() {
    const ending = this.fixed ? `&end_unix_s=${Math.round(this.fixed.to)}` : '';
    const url = `/api/v1/history?series=${this.series}&range=${this.range}&points=${this.points}${ending}`;
    const answer = await fetch(url).catch(() => null);
    if (!answer) return;
    const found = await answer.json();
    this.problem = answer.ok ? '' : found.error;
    this.version += 1;
    if (!answer.ok) return;
    const columns = Object.entries(found.values);
    const length = columns.length ? columns[0][1].length : 0;
    // Begins at the first reading: an agent that has just started has less than the range.
    const known = ([, column]) => column.findIndex((value) => value !== null);
    const start = Math.min(length, ...columns.map(known).filter((at) => at >= 0));
    this.step = found.step_s;
    this.times = Array.from(
      { length: length - start },
      (_, at) => found.start_unix_s + (start + at + 1) * found.step_s,
    );
    this.columns = new Map(columns.map(([subject, column]) => [subject, column.slice(start)]));
    this.kept = found.kept;
    this.source = found.source;
    this.open = null;
  }

  // The first and the last second of the range.
  bounds() {
    if (this.fixed) return [this.fixed.from, this.fixed.to];
    const end = this.times.length ? this.times[this.times.length - 1] : Date.now() / 1000;
    return [end - this.span, end];
  }

  // Adds one snapshot; true when a step was completed.
  add(document) {
    if (this.fixed) return false;
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
    // Steps without a snapshot are a gap, not a line.
    if (now - last > this.step * 2.5 && this.times.length) this.push(last + this.step, { sums: {}, counts: {} });
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

  // The least, mean and greatest reading of the range; null without a reading. Computed once for each step.
  summary(subject) {
    const last = this.summed.get(subject);
    if (last && last.version === this.version) return last;
    const found = { ...summarised(this.columns.get(subject) || []), version: this.version };
    this.summed.set(subject, found);
    return found;
  }
}

function summarised(column) {
  let least = null;
  let most = null;
  let sum = 0;
  let known = 0;
  for (const value of column) {
    if (value === null) continue;
    known += 1;
    sum += value;
    if (least === null || value < least) least = value;
    if (most === null || value > most) most = value;
  }
  return { least, mean: known ? sum / known : null, most };
}
