// Readings over the last hour or day, from the agent's memory; longer ranges where a Prometheus is configured. One legend
// and one zoom for all charts; the statistics are those of the range shown.
import { html, classes } from '../html.js';
import { Chart, lineClasses } from '../chart.js';
import { Still } from '../lazy.js';
import { Choice, Section } from '../parts.js';
import { bytes, celsius, clock, duration, percent, watts } from '../format.js';
import { NODE, seconds, valuesNow } from '../recent.js';

const distinct = (gpus, name, word, show) =>
  [...new Set(gpus.map((gpu) => gpu[name]).filter(Boolean))].map((value) => ({
    value,
    label: `${word} ${show(value)}`,
  }));

export const CHARTS = [
  { label: 'CPU', series: 'cpu_utilization_ratio', show: percent, top: 1.02, node: true },
  { label: 'Memory of the node', series: 'memory_used_ratio', show: percent, top: 1.02, node: true },
  { label: 'GPU utilisation', series: 'gpu_utilization_ratio', show: percent, top: 1.02 },
  {
    label: 'GPU memory used',
    series: 'gpu_memory_used_bytes',
    show: bytes,
    binary: true,
    limits: (gpus) => distinct(gpus, 'memory_total_bytes', 'capacity', bytes),
  },
  {
    label: 'GPU power',
    series: 'gpu_power_watts',
    show: watts,
    limits: (gpus) => distinct(gpus, 'power_limit_watts', 'limit', watts),
  },
  {
    label: 'GPU temperature',
    series: 'gpu_temperature_celsius',
    show: celsius,
    limits: (gpus) => distinct(gpus, 'temperature_slowdown_celsius', 'slowdown', celsius),
  },
];
const STATISTICS = ['now', 'least', 'mean', 'most'];
const RANGES = [
  ['5m', '5 minutes'],
  ['15m', '15 minutes'],
  ['1h', '1 hour'],
  ['24h', '24 hours'],
];
const LONGER = [
  ['7d', '7 days'],
  ['30d', '30 days'],
  ['90d', '90 days'],
];

export function History({ document, charts, view, narrow, onView, onRange }) {
  const first = charts.values().next().value;
  const kept = first && first.kept;
  const beyond = kept && kept.beyond;
  const gpus = document.gpus ? document.gpus.by_uuid : {};
  const lines = Object.keys(gpus)
    .sort((a, b) => gpus[a].index - gpus[b].index)
    .map((id, at) => ({ id, label: `GPU ${gpus[id].index}`, index: String(gpus[id].index), at }));
  const chosen = lines.filter(({ index }) => isShown(view, index));
  const shown = CHARTS.filter((chart) => charts.has(chart.series) && (chart.node || lines.length));
  const onZoom = (from, to) => (from || view.from) && onRange({ ...view, from, to });
  // A snapshot must not overwrite what the viewer types.
  const tools = html`<${Still} on=${[view, beyond]} draw=${() => rangeTools(view, beyond, onRange)} />`;
  return html`<${Section} id="history" title="History" note=${keptNote(kept)} tools=${tools}>
    <details class="more bare" open=${!narrow}>
    <summary>Charts</summary>
    <${Still}
      on=${[view, lines.length]}
      draw=${() => html`<${Legend} lines=${lines} view=${view} onView=${onView} onZoom=${onZoom} />`}
    />
    <div class="charts">
      ${shown.map((chart) => {
        const recent = charts.get(chart.series);
        const now = chart.node && valuesNow(document, chart.series)[NODE];
        return html`<${Chart}
          key=${chart.series}
          recent=${recent}
          lines=${chart.node ? [{ id: NODE, label: 'node', at: 0 }] : chosen}
          limits=${chart.limits ? chart.limits(chosen.map(({ id }) => gpus[id])) : []}
          show=${chart.show}
          top=${chart.top}
          binary=${chart.binary}
          label=${chart.label}
          note=${chart.node && html`<${NodeStatistics} recent=${recent} now=${now} show=${chart.show} />`}
          onZoom=${onZoom}
        />`;
      })}
    </div></details>
    ${
      lines.length > 0 &&
      html`<details class="more">
      <summary>Least, mean and most of each GPU</summary>
      <${Statistics} document=${document} charts=${charts} shown=${shown.filter((chart) => !chart.node)} lines=${chosen} />
    </details>`
    }
  </${Section}>`;
}

const NodeStatistics = ({ recent, now, show }) =>
  html`<p class="note" data-subject=${NODE}>
  ${statisticsOf(recent, NODE, now).map(([name, value]) => html`<span>${name} <b data-f=${name}>${show(value)}</b></span>`)}
</p>`;

// The shortest range that has all readings of the agent: a longer one would be empty at its beginning.
export function rangeFor(document) {
  const { agent } = document.node;
  const known = agent ? document.time_unix_s - agent.started_unix_s : Infinity;
  return RANGES.map(([range]) => range).find((range) => seconds(range) >= known && seconds(range) <= 3600) || '1h';
}

const isShown = (view, index) => !view.lines.length || view.lines.includes(index);

const statisticsOf = (recent, subject, now) =>
  STATISTICS.map((name) => [name, name === 'now' ? now : recent.summary(subject)[name]]);

// The first click shows one GPU alone, the next ones add and remove GPUs.
function toggled({ lines }, index) {
  return lines.includes(index) ? lines.filter((each) => each !== index) : [...lines, index];
}

function Legend({ lines, view, onView, onZoom }) {
  return html`<div class="legend-line">
    ${
      lines.length > 0 &&
      html`<ul aria-label="GPUs in the charts">
      ${lines.map(
        ({ id, label, index, at }) =>
          html`<li key=${id}>
          <button
            type="button"
            class=${classes(!isShown(view, index) && 'off')}
            aria-pressed=${isShown(view, index) ? 'true' : 'false'}
            onClick=${() => onView({ ...view, lines: toggled(view, index) })}
          ><span class="swatch stroke ${lineClasses(at)}" aria-hidden="true"></span>${label}</button>
        </li>`,
      )}
    </ul>`
    }
    ${
      view.from
        ? html`<p class="zoom">${spanOf(view)} <button type="button" onClick=${() => onZoom(0, 0)}>Reset zoom</button></p>`
        : html`<p class="quiet by-mouse">Drag across a chart to zoom.</p>`
    }
  </div>`;
}

const spanOf = ({ from, to }) => `${clock(from, Date.now() / 1000)} to ${clock(to, Date.now() / 1000)}`;

function Statistics({ document, charts, shown, lines }) {
  const now = new Map(shown.map(({ series }) => [series, valuesNow(document, series)]));
  return html`<div class="scroll" tabindex="0" role="region" aria-label="statistics of the range shown">
    <table class="small statistics">
      <caption class="hidden">Readings of each GPU: now, and least, mean and most of the range shown</caption>
      <thead>
        <tr><td></td>${shown.map(({ label }) => html`<th key=${label} scope="colgroup" colspan="4">${label}</th>`)}</tr>
        <tr><td></td>${shown.map(({ series }) => STATISTICS.map((name) => html`<th key=${series + name} scope="col">${name}</th>`))}</tr>
      </thead>
      <tbody>
        ${lines.map(
          ({ id, label }) =>
            html`<tr key=${id} data-subject=${id}>
            <th scope="row">${label}</th>
            ${shown.map(({ series, show }) =>
              statisticsOf(charts.get(series), id, now.get(series)[id]).map(
                ([name, value]) => html`<td key=${series + name} data-f="${series}.${name}">${show(value)}</td>`,
              ),
            )}
          </tr>`,
        )}
      </tbody>
    </table>
  </div>`;
}

function rangeTools(view, beyond, onRange) {
  const ranges = beyond ? [...RANGES, ...LONGER] : RANGES;
  const pick = (range) => onRange({ ...view, range, end: '', from: 0, to: 0 });
  return html`<${Choice} label="range" options=${ranges} value=${view.from ? '' : view.range} onPick=${pick} />
    ${
      beyond &&
      html`<form class="field" onSubmit=${(event) => submit(event, view, onRange)}>
      <label>range <input name="range" size="5" pattern="[1-9][0-9]*[smhd]" value=${view.range} /></label>
      <label>until <input name="end" type="datetime-local" value=${view.end} /></label>
      <button type="submit">Show</button>
    </form>`
    }`;
}

function submit(event, view, onRange) {
  event.preventDefault();
  const { range, end } = event.target.elements;
  onRange({ ...view, range: range.value, end: end.value, from: 0, to: 0 });
}

function keptNote(kept) {
  if (!kept) return '';
  const fine = `${duration(kept.fine_span_s)} at ${duration(kept.fine_step_s)}`;
  const coarse = `${duration(kept.coarse_span_s)} at ${duration(kept.coarse_step_s)}`;
  return `in memory: ${fine}, ${coarse}, ${bytes(kept.bytes)}`;
}
