// The fleet: every slot of every node as one dense grid, free slots first. The agent asks Prometheus; this page asks the
// agent every few seconds, and keeps the last view where an answer fails.
import { render } from './vendor/preact.mjs';
import { html, classes } from './html.js';
import { Still } from './lazy.js';
import { Choice } from './parts.js';
import { bytes, clock, count, duration, hours, kilowattHours, money, percent, plural } from './format.js';
import { isCalm, Strip } from './sections/now.js';
import { QUEUED, stateWord } from './states.js';

const EVERY_MS = 5000;
// The accounts are recorded every 4 minutes.
const ACCOUNTS_EVERY_MS = 60000;
// The first cells are painted at once, the others in the next moment; beyond the most, when the viewer asks for them.
const FIRST_DRAWN = 400;
const MOST_DRAWN = 4000;
const MOST_PROBLEMS = 6;
const STATES = ['free', 'held_idle', 'reserved', 'unknown', 'busy', 'lost', 'silent'];
const CELL_WORDS = { held_idle: 'idle' };
const DEFAULTS = { user: '', model: '', state: '', by: 'state', accounts: 'user' };
const ICONS = { bad: '/static/icon-bad.svg', warning: '/static/icon-warning.svg' };

const root = document.getElementById('page');
const { hostname } = root.dataset;
const icon = document.querySelector('link[rel=icon]');
const given = new URLSearchParams(window.location.search);
const state = {
  found: null,
  report: null,
  reportError: '',
  error: '',
  most: FIRST_DRAWN,
  view: Object.fromEntries(Object.entries(DEFAULTS).map(([name, value]) => [name, given.get(name) ?? value])),
};
let timer = 0;
let accountsTimer = 0;

const draw = () => render(html`<${Page} ...${state} />`, root);

function change(part) {
  Object.assign(state, part);
  draw();
}

function choose(part) {
  const view = { ...state.view, ...part };
  const query = new URLSearchParams(Object.entries(view).filter(([name, value]) => value !== DEFAULTS[name]));
  window.history.replaceState(null, '', window.location.pathname + (query.size ? `?${query}` : ''));
  change({ view, most: MOST_DRAWN });
}

async function load() {
  clearTimeout(timer);
  try {
    const response = await fetch('/api/v1/fleet');
    const answer = await response.json();
    if (response.ok) announce(answer);
    change(response.ok ? { found: answer, error: '' } : { error: answer.error });
  } catch {
    change({ error: 'The agent does not answer. Trying again.' });
  }
  if (state.found && state.most === FIRST_DRAWN)
    requestAnimationFrame(() => setTimeout(() => change({ most: MOST_DRAWN })));
  if (!document.hidden) timer = setTimeout(load, EVERY_MS);
}

async function loadAccounts() {
  clearTimeout(accountsTimer);
  const by = state.view.accounts;
  try {
    const response = await fetch(`/api/v1/fleet/report?by=${encodeURIComponent(by)}`);
    const answer = await response.json();
    if (by === state.view.accounts)
      change(response.ok ? { report: answer, reportError: '' } : { reportError: answer.error });
  } catch {
    change({ reportError: 'The agent does not answer. Trying again.' });
  }
  if (!document.hidden) accountsTimer = setTimeout(loadAccounts, ACCOUNTS_EVERY_MS);
}

function announce({ fleet: { summary } }) {
  const title = `${summary.sentence} · fleet`;
  if (document.title !== title) document.title = title;
  const href = ICONS[summary.tone] || '/static/icon.svg';
  if (icon.getAttribute('href') !== href) icon.setAttribute('href', href);
}

// A tab in the background asks nothing.
document.addEventListener('visibilitychange', () => {
  if (document.hidden) {
    clearTimeout(timer);
    clearTimeout(accountsTimer);
  } else {
    load();
    loadAccounts();
  }
});

function Page({ found, error, view, most, report, reportError }) {
  return html`<header class="bar">
      <p class="mark">gpucommons</p>
      <h1 class="host">Fleet</h1>
      <nav aria-label="pages"><ul><li><a href="/">This node: ${hostname}</a></li></ul></nav>
      ${
        found &&
        html`<p class="link">
        <span>as of <span data-f="time">${clock(found.fleet.time_unix_s, Date.now() / 1000)}</span></span>
      </p>`
      }
    </header>
    <main class=${classes(error && found && 'old')} data-slots=${found ? found.fleet.slots.length : null}>
      ${error && html`<p class="failed" role="alert"><b>No current readings.</b> ${error}</p>`}
      ${found && html`<${Fleet} found=${found} view=${view} most=${most} />`}
      ${found && html`<${Accounts} report=${report} error=${reportError} by=${view.accounts} />`}
      ${!found && !error && html`<p class="quiet" role="status">Asking Prometheus …</p>`}
    </main>`;
}

function Fleet({ found, view, most }) {
  const { fleet, hidden } = found;
  const shown = fleet.slots.filter((slot) => isShown(slot, view));
  const drawn = shown.slice(0, most);
  const isAll = shown.length === fleet.slots.length;
  const more = shown.length - drawn.length;
  return html`<section id="now" aria-labelledby="now-title">
      <h2 id="now-title" class="hidden">Now</h2>
      <${Strip}
        parts=${fleet.summary.parts}
        chosen=${view.state}
        label="the fleet now"
        target=${(part) => (part.name === 'problems' ? '#problems' : `?state=${part.name}`)}
        onChoose=${pick}
      />
      <${Problems} fleet=${fleet} />
    </section>
    <section id="slots" aria-labelledby="slots-title">
      <div class="head">
        <h2 id="slots-title">Slots</h2>
        <p class="note" role="status">${isAll ? 'all' : `${count(shown.length)} of`} ${count(fleet.slots.length)}</p>
        <${Tools} slots=${fleet.slots} view=${view} />
      </div>
      ${hidden && html`<p class="quiet" data-hidden="slots">Owners are ${hidden.sentence}.</p>`}
      ${
        fleet.slots.length === 0 &&
        html`<p class="quiet">Prometheus has no slot of any node. It needs to scrape /metrics of the agents.</p>`
      }
      ${fleet.slots.length > 0 && shown.length === 0 && html`<p class="quiet">No slot matches.</p>`}
      ${
        view.by === 'node'
          ? html`<${ByNode} fleet=${fleet} slots=${drawn} />`
          : html`<${ByState} fleet=${fleet} slots=${drawn} counts=${countBy(shown, 'state')} />`
      }
      ${
        most >= MOST_DRAWN &&
        more > 0 &&
        html`<p>
        <button type="button" class="all" onClick=${() => change({ most: Infinity })}>Show ${count(more)} more</button>
      </p>`
      }
    </section>`;
}

const ACCOUNTS_BY = [
  ['user', 'Users'],
  ['group', 'Groups'],
  ['month', 'Months'],
];

// The sums of all ledgers for this month, or by month.
function Accounts({ report, error, by }) {
  const [name, period] = report && report.accounts ? Object.entries(report.accounts)[0] : ['', null];
  const rows = period && period.by === by ? Object.entries(period[`${by}s`]) : null;
  const pickRows = (accounts) => {
    choose({ accounts });
    loadAccounts();
  };
  return html`<section id="accounts" aria-labelledby="accounts-title">
    <div class="head">
      <h2 id="accounts-title">Accounts</h2>
      <p class="note">GPU-hours of all nodes${name && `, ${name}`}</p>
      <div class="tools"><${Choice} label="rows" options=${ACCOUNTS_BY} value=${by} onPick=${pickRows} /></div>
    </div>
    ${error && html`<p class="failed" role="alert">${error}</p>`}
    ${report && report.hidden && html`<p class="quiet" data-hidden="accounts">Accounts of others are ${report.hidden.sentence}.</p>`}
    ${
      rows &&
      !rows.length &&
      html`<p class="quiet">
      No accounts of this month. Prometheus needs the rules of stack/rules/fleet.yml; they record every 4 minutes.
    </p>`
    }
    ${rows && rows.length > 0 && html`<${AccountRows} period=${period} rows=${rows} />`}
  </section>`;
}

function AccountRows({ period, rows }) {
  const priced = 'cost' in period.total;
  const energy = period.total.energy_kwh !== null;
  return html`<div class="scroll" tabindex="0" role="region" aria-label="GPU-hours of all nodes">
      <table class="rows accounts">
        <thead>
          <tr>
            <th scope="col">${period.by[0].toUpperCase() + period.by.slice(1)}</th>
            <th scope="col" class="number">Held</th>
            <th scope="col" class="number">Active</th>
            <th scope="col" class="number">Idle</th>
            ${priced && html`<th scope="col" class="number">Cost${period.currency ? ` ${period.currency}` : ''}</th>`}
            <th scope="col" class="number">Whole GPUs</th>
            ${energy && html`<th scope="col" class="number">Energy</th>`}
          </tr>
        </thead>
        <tbody>
          ${rows.map(
            ([name, row]) =>
              html`<${AccountRow} key=${name} name=${name} row=${row} priced=${priced} energy=${energy} />`,
          )}
        </tbody>
        <tfoot><${AccountRow} name="total" row=${period.total} priced=${priced} energy=${energy} total=${true} /></tfoot>
      </table>
    </div>
    ${period.cost_note && html`<p class="quiet">Cost: ${period.cost_note}.</p>`}
    ${period.total.unpriced_gpu_hours > 0 && html`<p class="quiet">Without a price: ${hours(period.total.unpriced_gpu_hours)}.</p>`}`;
}

function AccountRow({ name, row, priced, energy, total }) {
  return html`<tr data-account=${total ? undefined : name} data-total=${total ? 'yes' : undefined}>
    <th scope="row" class="name"><bdi>${name}</bdi></th>
    <td class="number" data-f="held_gpu_hours">${hours(row.held_gpu_hours)}</td>
    <td class="number" data-f="active_gpu_hours">${hours(row.active_gpu_hours)}</td>
    <td class="number" data-f="idle_gpu_hours">${hours(row.idle_gpu_hours)}</td>
    ${priced && html`<td class="number" data-f="cost">${money(row.cost)}</td>`}
    <td class="number" data-f="gpu_equivalent_hours">${hours(row.gpu_equivalent_hours)}</td>
    ${energy && html`<td class="number" data-f="energy_kwh">${kilowattHours(row.energy_kwh)}</td>`}
  </tr>`;
}

function isShown(slot, { user, model, state: chosen }) {
  const named = user.toLowerCase();
  return (
    (!chosen ||
      slot.state === chosen ||
      (QUEUED.includes(chosen) && (slot[chosen] > 0 || (chosen === 'waiting' && slot.paused > 0)))) &&
    (!model || slot.model === model) &&
    (!named || slot.holders.some((holder) => holder.toLowerCase().includes(named)))
  );
}

const word = (name) => (name === 'silent' ? 'not answering' : stateWord(name));

function pick(part, event) {
  if (part.name === 'problems') return;
  event.preventDefault();
  choose({ state: state.view.state === part.name ? '' : part.name });
}

// The nodes that do not answer, and since when: without their slots they would be missing. Then every node with a problem;
// its page has the sentences. Nodes with nothing but idle holders are folded: the strip names the holders.
function Problems({ fleet }) {
  const nodes = Object.entries(fleet.nodes);
  const answering = nodes.filter(([, node]) => node.answers && node.problem_sentence);
  const rows = [
    ...nodes.filter(([, node]) => !node.answers).map((row) => silentRow(row, fleet)),
    ...answering.filter((row) => !isHeldIdleOnly(row)).map(problemRow),
  ];
  const idle = answering.filter(isHeldIdleOnly).map(problemRow);
  if (!rows.length && !idle.length) return isCalm(fleet) && html`<p id="problems" class="quiet">No problem.</p>`;
  return html`<ol id="problems" class="problems" aria-label="nodes with problems">${rows.slice(0, MOST_PROBLEMS)}</ol>
    <${Folded} what=${`${rows.length - MOST_PROBLEMS} more`} rows=${rows.slice(MOST_PROBLEMS)} />
    <${Folded} what=${`${plural(idle.length, 'node')} with GPUs held idle`} rows=${idle} />`;
}

const Folded = ({ what, rows }) =>
  rows.length > 0 &&
  html`<details class="more">
    <summary>${what}</summary>
    <ol class="problems">${rows}</ol>
  </details>`;

const isHeldIdleOnly = ([, node]) => Object.keys(node.problems).every((kind) => kind === 'held_idle');

const silentRow = ([instance, node], fleet) =>
  html`<li key=${instance} class="bad" data-silent=${instance}>
    <span class="mark bad">silent</span>
    <p><b><bdi>${node.name}</bdi></b> not answering ${sinceOf(node, fleet)}</p>
  </li>`;

function problemRow([instance, node]) {
  const name = html`<b><bdi>${node.name}</bdi></b>`;
  return html`<li key=${instance} class="warn" data-problems-of=${instance}>
    <span class="mark warn">problem</span>
    <p>${node.page_url ? html`<a href="${node.page_url}#problems">${name}</a>` : name}: ${node.problem_sentence}</p>
  </li>`;
}

function sinceOf(node, fleet) {
  if (node.last_seen_unix_s === null) return 'for more than an hour';
  return `since ${clock(node.last_seen_unix_s, fleet.time_unix_s)}, for ${duration(fleet.time_unix_s - node.last_seen_unix_s)}`;
}

function countBy(slots, field) {
  const found = new Map();
  for (const slot of slots) found.set(slot[field], (found.get(slot[field]) || 0) + 1);
  return found;
}

function Tools({ slots, view }) {
  const models = [...countBy(slots, 'model').keys()].filter(Boolean).sort();
  const users = [...new Set(slots.flatMap((slot) => slot.holders))].sort();
  const states = [
    ...STATES.filter((name) => name === view.state || slots.some((slot) => slot.state === name)),
    ...QUEUED.filter((name) => name === view.state || slots.some((slot) => slot[name] > 0)),
  ];
  return html`<div class="tools">
    <${Choice} label="order" options=${[
      ['state', 'Free first'],
      ['node', 'By node'],
    ]} value=${view.by} onPick=${(by) => choose({ by })} />
    <label class="field">State <select name="state" value=${view.state} onChange=${(event) => choose({ state: event.target.value })}>
      <option value="">all</option>
      ${states.map((name) => html`<option key=${name} value=${name}>${word(name)}</option>`)}
    </select></label>
    <label class="field">Model <select name="model" value=${view.model} onChange=${(event) => choose({ model: event.target.value })}>
      <option value="">all</option>
      ${models.map((model) => html`<option key=${model} value=${model}>${short(model)}</option>`)}
    </select></label>
    <label class="field">User <input
      type="search"
      name="user"
      list="users"
      autocomplete="off"
      value=${view.user}
      onInput=${(event) => choose({ user: event.target.value })}
    /></label>
    <datalist id="users">${users.map((user) => html`<option key=${user} value=${user}></option>`)}</datalist>
  </div>`;
}

const short = (model) => model.replace(/^NVIDIA /, '').replace(/^(GeForce|Tesla) /, '');
// In a cell, whose memory is next to it: A100 of A100-SXM4-80GB, H100 of H100 80GB HBM3.
const brief = (model) => short(model).replace(/[- ](SXM|PCIe|HBM|\d+GB).*$/i, '');

function ByState({ fleet, slots, counts }) {
  return STATES.filter((name) => slots.some((slot) => slot.state === name)).map(
    (name) =>
      html`<div key=${name} class="group" data-group=${name}>
      <h3><span class="state ${name}">${word(name)}</span> ${count(counts.get(name))}</h3>
      <${Cells} fleet=${fleet} slots=${slots.filter((slot) => slot.state === name)} named=${true} label=${word(name)} />
    </div>`,
  );
}

function ByNode({ fleet, slots }) {
  const byNode = new Map();
  for (const slot of slots) {
    if (!byNode.has(slot.node)) byNode.set(slot.node, []);
    byNode.get(slot.node).push(slot);
  }
  const natural = new Intl.Collator(undefined, { numeric: true }).compare;
  return html`<div class="nodes">
    ${Object.keys(fleet.nodes)
      .filter((instance) => byNode.has(instance))
      .map((instance) => {
        const node = fleet.nodes[instance];
        const own = byNode.get(instance).sort((a, b) => natural(a.slot, b.slot));
        const free = own.filter((slot) => slot.state === 'free').length;
        const counted = `${free} of ${plural(own.length, 'slot')} free`;
        return html`<div key=${instance} class="group" data-node=${instance}>
          <h3>
            <bdi>${node.name}</bdi>
            ${' '}<span class="quiet">${[short(own[0].model), counted].filter(Boolean).join(', ')}</span>
          </h3>
          <${Cells} fleet=${fleet} slots=${own} named=${false} label=${node.name} />
        </div>`;
      })}
  </div>`;
}

function Cells({ fleet, slots, named, label }) {
  return html`<ul class="cells" aria-label=${label}>
    ${slots.map((slot) => {
      const node = fleet.nodes[slot.node];
      const amount = amountOf(slot, node, fleet);
      const detail = detailOf(slot, named);
      return html`<${Still}
        key=${slot.node + slot.uuid}
        on=${[slot.state, amount, detail, slot.utilization_ratio, slot.memory_free_bytes, node.page_url]}
        draw=${() => cellOf(slot, node, named, amount, detail)}
      />`;
    })}
  </ul>`;
}

function holders({ holders: names, hidden_holders: others }) {
  if (names.length) return names.length + others > 1 ? `${names[0]} +${names.length + others - 1}` : names[0];
  return others ? `${others} hidden` : '';
}

// The number of a cell: what its state is judged by.
function amountOf(slot, node, fleet) {
  if (slot.state === 'free') return slot.memory_free_bytes === null ? '' : bytes(slot.memory_free_bytes);
  if (slot.state === 'held_idle') return slot.idle_s === null ? '' : largest(slot.idle_s);
  if (slot.state === 'silent')
    return node.last_seen_unix_s === null ? '> 1 h' : largest(fleet.time_unix_s - node.last_seen_unix_s);
  return slot.state === 'busy' ? percent(slot.utilization_ratio) : '';
}

const largest = (seconds) => duration(seconds).split(' ')[0];

// In a group of one state its owner or model is enough; else the state is in words, not in its colour alone.
function detailOf(slot, named) {
  const owner = holders(slot);
  const waits = QUEUED.filter((name) => slot[name]).map((name) => `${slot[name]} ${name}`);
  const own = owner || (named ? brief(slot.model) : '');
  const state = named || (slot.state === 'busy' && owner) ? '' : CELL_WORDS[slot.state] || slot.state;
  return [state, own, ...waits].filter(Boolean).join(' · ');
}

// Few elements: there are thousands of cells.
function cellOf(slot, node, named, amount, detail) {
  const model = [slot.model, slot.profile].filter(Boolean).join(' ');
  const by = slot.holders.length ? ` by ${slot.holders.join(', ')}` : '';
  const memory = `${bytes(slot.memory_free_bytes)} of ${bytes(slot.memory_total_bytes)} free`;
  const title = `${node.name} GPU ${slot.slot}, ${model}: ${word(slot.state)}${by}; ${percent(slot.utilization_ratio)} busy, ${memory}`;
  const inside = html`${named ? html`<b><span>${node.name}</span>${` · ${slot.slot}`}</b>` : html`<b>${slot.slot}</b>`}
    <span class="amount">${amount}</span><span class="detail">${detail}</span>
    ${slot.utilization_ratio > 0 && html`<i style=${{ width: `${100 * Math.min(1, slot.utilization_ratio)}%` }}></i>`}`;
  return html`<li class=${named ? 'cell named' : 'cell'} data-slot=${slot.uuid} data-state=${slot.state} title=${title}>
    ${node.page_url ? html`<a href="${node.page_url}#gpu-${slot.gpu_index}">${inside}</a>` : html`<div>${inside}</div>`}
  </li>`;
}

load();
loadAccounts();
