// Readings over the last hour or day, from the agent's memory; any range if a Prometheus is configured.
import { html } from '../html.js';
import { Chart } from '../chart.js';
import { Still } from '../lazy.js';
import { Choice, Section } from '../parts.js';
import { bytes, celsius, duration, percent, watts } from '../format.js';
import { NODE, valuesNow } from '../recent.js';

export const CHARTS = [
  { label: 'CPU', series: 'cpu_utilization_ratio', show: percent, top: 1.02, node: true },
  { label: 'Memory of the node', series: 'memory_used_ratio', show: percent, top: 1.02, node: true },
  { label: 'GPU utilisation', series: 'gpu_utilization_ratio', show: percent, top: 1.02 },
  { label: 'GPU memory used', series: 'gpu_memory_used_bytes', show: bytes, binary: true },
  { label: 'GPU power', series: 'gpu_power_watts', show: watts },
  { label: 'GPU temperature', series: 'gpu_temperature_celsius', show: celsius },
];
const RANGES = [['1h', '1 hour'], ['24h', '24 hours']];
const LONGER = [['7d', '7 days'], ['30d', '30 days'], ['90d', '90 days']];

export function History({ document, charts, view, onRange }) {
  const first = charts.values().next().value;
  const kept = first && first.kept;
  const beyond = kept && kept.beyond;
  const gpus = document.gpus ? document.gpus.by_uuid : {};
  const cards = Object.keys(gpus).sort((a, b) => gpus[a].index - gpus[b].index);
  const shown = CHARTS.filter((chart) => chart.node || cards.length);
  // A snapshot must not overwrite what the viewer types.
  const tools = html`<${Still} on=${[view, beyond]} draw=${() => rangeTools(view, beyond, onRange)} />`;
  return html`<${Section} id="history" title="History" note=${keptNote(kept)} tools=${tools}>
    <div class="charts">
      ${shown.map((chart) => {
        const recent = charts.get(chart.series);
        const subjects = chart.node ? [[NODE, 'node']] : cards.map((uuid) => [uuid, `GPU ${gpus[uuid].index}`]);
        return (
          recent &&
          html`<${Chart}
            key=${chart.series}
            recent=${recent}
            subjects=${subjects}
            show=${chart.show}
            top=${chart.top}
            binary=${chart.binary}
            label=${chart.label}
            now=${valuesNow(document, chart.series)}
          />`
        );
      })}
    </div>
  </${Section}>`;
}

function rangeTools(view, beyond, onRange) {
  return html`<${Choice} label="range" options=${beyond ? [...RANGES, ...LONGER] : RANGES} value=${view.range} onPick=${(range) => onRange({ range, end: '' })} />
    ${beyond &&
    html`<form class="field" onSubmit=${(event) => submit(event, onRange)}>
      <label>range <input name="range" size="5" pattern="[1-9][0-9]*[smhd]" value=${view.range} /></label>
      <label>until <input name="end" type="datetime-local" value=${view.end} /></label>
      <button type="submit">Show</button>
    </form>`}`;
}

function submit(event, onRange) {
  event.preventDefault();
  const { range, end } = event.target.elements;
  onRange({ range: range.value, end: end.value });
}

function keptNote(kept) {
  if (!kept) return '';
  const fine = `${duration(kept.fine_span_s)} at ${duration(kept.fine_step_s)}`;
  const coarse = `${duration(kept.coarse_span_s)} at ${duration(kept.coarse_step_s)}`;
  return `in memory: ${fine}, ${coarse}, ${bytes(kept.bytes)}`;
}
