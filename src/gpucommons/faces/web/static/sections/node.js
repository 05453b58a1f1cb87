// The node itself: CPU, memory, their headroom, pressure, and in one line what this node does not have.
import { html, classes } from '../html.js';
import { Bar, Section } from '../parts.js';
import { bytes, clock, count, load, MISSING, ofHundred, percent, score, words } from '../format.js';

const COMPONENTS = ['cpu_utilization', 'cpu_load', 'memory', 'cpu_pressure', 'memory_pressure'];
const TITLES = {
  cpu_utilization: 'CPU time',
  cpu_load: 'CPU load',
  memory: 'memory',
  cpu_pressure: 'CPU stalls',
  memory_pressure: 'memory stalls',
};

export function Node({ document }) {
  const { node } = document;
  return html`<${Section} id="node" title="Node" note=${nodeNote(document)} word="headroom">
    <div class="panels">
      <${Headroom} health=${node.health} />
      <${Cpu} cpu=${node.cpu} />
      <${Memory} memory=${node.memory} />
      <${Pressure} pressure=${node.pressure} />
    </div>
    <${Missing} sources=${node.sources} now=${document.time_unix_s} />
  </${Section}>`;
}

function nodeNote({ node, gpus }) {
  const parts = [];
  if (gpus) parts.push(`driver ${gpus.driver_version}`, `CUDA ${gpus.cuda_version}`);
  if (node.agent) parts.push(`agent ${node.agent.version}`);
  return parts.join(' · ');
}

const levelOfScore = (value) => (value < 2 ? 'bad' : value < 4 ? 'warn' : '');
const levelOfShare = (value, warn, bad) => (value >= bad ? 'bad' : value >= warn ? 'warn' : '');

// The bars show what is used, as the panels next to them do; the score is what is left.
function Headroom({ health }) {
  return html`<div class="panel health">
    <h3>CPU and memory headroom <span class="quiet">10 is idle</span></h3>
    <p class=${classes('big', health && levelOfScore(health.score))}>
      <span data-f="health.score">${score(health ? health.score : null)}</span><small> / 10</small>
    </p>
    <dl class="components">
      ${COMPONENTS.map((name) => {
        const left = health ? (health.component_ratios[name] ?? null) : null;
        const ratio = left === null ? null : 1 - left;
        return html`<div key=${name}>
          <dt>${TITLES[name]}</dt>
          <dd>
            <${Bar} ratio=${ratio} />
            <span data-f="health.${name}">${percent(ratio)}</span>
          </dd>
        </div>`;
      })}
    </dl>
    ${
      health &&
      health.completeness_ratio < 0.999 &&
      html`<p class="quiet">from ${percent(health.completeness_ratio)} of the components; the others were not read</p>`
    }
  </div>`;
}

function Cpu({ cpu }) {
  const busy = cpu ? cpu.utilization_ratio : null;
  return html`<div class="panel">
    <h3>CPU</h3>
    <p class="big"><span data-f="cpu.utilization_ratio">${percent(busy)}</span></p>
    <${Bar} ratio=${busy} level=${levelOfShare(busy, 0.9, 0.98)} />
    <p class="quiet">
      <span data-f="cpu.cores">${count(cpu ? cpu.cores : null)}</span> cores · load
      ${' '}<span data-f="cpu.load_1m">${load(cpu ? cpu.load_1m : null)}</span>
      ${' '}${load(cpu ? cpu.load_5m : null)} ${load(cpu ? cpu.load_15m : null)}
    </p>
  </div>`;
}

function Memory({ memory }) {
  const known = memory && memory.available_bytes !== null;
  const used = known ? memory.total_bytes - memory.available_bytes : null;
  const ratio = known ? used / memory.total_bytes : null;
  return html`<div class="panel">
    <h3>Memory</h3>
    <p class="big"><span data-f="memory.used">${bytes(used)}</span></p>
    <${Bar} ratio=${ratio} level=${levelOfShare(ratio, 0.9, 0.97)} />
    <p class="quiet">
      of <span data-f="memory.total_bytes">${bytes(memory ? memory.total_bytes : null)}</span> ·
      ${' '}<span data-f="memory.available_bytes">${bytes(memory ? memory.available_bytes : null)}</span> available
    </p>
  </div>`;
}

function Pressure({ pressure }) {
  return html`<div class="panel">
    <h3>Pressure <span class="quiet">time stalled</span></h3>
    <table class="small">
      <caption class="hidden">Share of time that tasks were stalled on each resource</caption>
      <thead>
        <tr>
          <th scope="col"><span class="hidden">resource</span></th>
          <th scope="col">10 s</th>
          <th scope="col">1 min</th>
          <th scope="col">5 min</th>
        </tr>
      </thead>
      <tbody>
        ${['cpu', 'memory', 'io'].map((name) => {
          const some = pressure && pressure[name] ? pressure[name].some : null;
          return html`<tr key=${name}>
            <th scope="row">${name === 'memory' ? 'memory' : name.toUpperCase()}</th>
            <td data-f="pressure.${name}" class=${levelOfShare(some ? some.avg10_percent : 0, 10, 40)}>
              ${ofHundred(some ? some.avg10_percent : null)}
            </td>
            <td>${ofHundred(some ? some.avg60_percent : null)}</td>
            <td>${ofHundred(some ? some.avg300_percent : null)}</td>
          </tr>`;
        })}
      </tbody>
    </table>
  </div>`;
}

function Missing({ sources, now }) {
  const names = Object.keys(sources).filter((name) => sources[name].state !== 'fresh');
  if (!names.length) return html`<p class="quiet">Every source was read.</p>`;
  const absent = names.filter((name) => sources[name].state === 'absent').length;
  const title = absent === names.length ? 'Not on this node' : 'Not read';
  return html`<details class="missing">
    <summary>${title}: ${names.map(words).join(', ')}</summary>
    <ul>
      ${names.map((name) => {
        const source = sources[name];
        const last = source.last_success_unix_s;
        return html`<li key=${name} data-source=${name}>
          <span class=${classes('state', source.state !== 'absent' && 'bad')}>${source.state}</span>
          <span class="what">${words(name)}</span>
          <span class="why">
            ${source.detail || MISSING}${source.remedy ? `; ${source.remedy}` : ''}
            ${source.state !== 'absent' && last !== null ? ` (last read ${clock(last, now)})` : ''}
          </span>
        </li>`;
      })}
    </ul>
  </details>`;
}
