// CPU and start of the processes on GPUs. They are not in the stream: the page asks for them while it shows processes.

const EVERY_MS = 5000;
const KEPT = 3;

// By process: { start_unix_s, cpu_ratio }. The share of a core is that between two answers; null with the first.
export function hostUseOf(answer, before) {
  const found = {};
  const elapsed = before ? answer.time_unix_s - before.time_unix_s : 0;
  for (const [key, row] of Object.entries(answer.host_use || {})) {
    const last = before && before.host_use ? before.host_use[key] : null;
    const spent =
      last && row.cpu_seconds !== null && last.cpu_seconds !== null ? row.cpu_seconds - last.cpu_seconds : null;
    found[key] = {
      start_unix_s: row.start_unix_s,
      cpu_ratio: spent === null || elapsed <= 0 ? null : Math.max(0, spent / elapsed),
    };
  }
  return found;
}

export class HostUse {
  constructor(onFound) {
    this.onFound = onFound;
    this.timer = 0;
    this.watched = false;
    this.answers = [];
  }

  watch(isWatched) {
    if (isWatched === this.watched) return;
    this.watched = isWatched;
    this.answers = [];
    clearTimeout(this.timer);
    if (isWatched) this.load();
  }

  async load() {
    const response = document.hidden ? null : await fetch('/api/v1/who').catch(() => null);
    if (!this.watched) return;
    if (response && response.ok) {
      const answer = await response.json();
      // The agent reads processes every few seconds: over a longer time the steps of its readings matter less.
      this.onFound(hostUseOf(answer, this.answers[0] || null));
      this.answers = [...this.answers, answer].slice(-KEPT);
    }
    this.timer = setTimeout(() => this.load(), EVERY_MS);
  }
}
