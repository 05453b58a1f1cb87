// The page is a function of one state: the agent's document, the state of the connection, and the viewer's choices.
// The document arrives once, then as deltas; it is rendered at most once per frame.
import { render } from './vendor/preact.mjs';
import { html, classes } from './html.js';
import { Lazy } from './lazy.js';
import { Live } from './live.js';
import { Recent, seconds } from './recent.js';
import { lit } from './owners.js';
import { clock, duration } from './format.js';
import { fromAddress, toAddress } from './address.js';
import { Now } from './sections/now.js';
import { Queue } from './sections/queue.js';
import { Node } from './sections/node.js';
import { Gpus } from './sections/gpus.js';
import { Who } from './sections/who.js';
import { Turns } from './sections/turns.js';
import { Accounts } from './sections/accounts.js';
import { Events } from './sections/events.js';
import { CHARTS, History, rangeFor } from './sections/history.js';
import { HostUse } from './host_use.js';

const SECTIONS = [
  ['gpus', 'GPUs'],
  ['accounts', 'Accounts'],
  ['queue', 'Queue'],
  ['who', 'Who'],
  ['turns', 'Turns'],
  ['events', 'Events'],
  ['history', 'History'],
  ['node', 'Node'],
];
const CHART_POINTS = 720;

const state = {
  document: null,
  link: 'connecting',
  lostAt: 0,
  turn: 0,
  ...fromAddress(window.location.search),
  most: mostColumns(),
  narrow: isNarrow(),
  recent: new Recent('gpu_utilization_ratio', '5m', 300),
  // The range of the charts until the viewer chooses one: that of the readings that there are.
  range: '1h',
  hostUse: {},
  charts: new Map(),
  loading: [],
};

const root = document.getElementById('page');
let drawing = 0;

function draw() {
  drawing =
    drawing ||
    requestAnimationFrame(() => {
      drawing = 0;
      render(html`<${Page} ...${state} />`, root);
    });
}

function change(part) {
  Object.assign(state, part);
  draw();
}

// Actions of the viewer. The address keeps them.
function choose(part) {
  change({ ...part, turn: state.turn + 1 });
  window.history.replaceState(null, '', window.location.pathname + toAddress(state) + window.location.hash);
}
function onView(part) {
  choose({ who: { ...state.who, all: false, ...part } });
  hostUse.watch(state.who.by === 'process');
}
const hostUse = new HostUse((found) => change({ hostUse: found }));
const onFocus = (focus) => choose({ focus: state.focus && focus && state.focus.id === focus.id ? null : focus });
const onPeriod = (period) => choose({ period });
const onChoose = (name) => choose({ show: name === state.show ? '' : name });

const onHistory = (history) => choose({ history });

function onRange(history) {
  choose({ history });
  loadCharts();
}

// A range that does not end now: a zoom, or one with an end.
function fixedRange({ range, end, from, to }) {
  if (from) return { from, to };
  const until = end ? Math.floor(new Date(end).getTime() / 1000) : 0;
  return until ? { from: until - seconds(range), to: until } : null;
}

// The same object while nothing changes: parts that snapshots do not change are compared by it.
let lastView = { history: null, range: '', view: null };

function historyView({ history, range }) {
  if (history.range) return history;
  if (lastView.history !== history || lastView.range !== range)
    lastView = { history, range, view: { ...history, range } };
  return lastView.view;
}

// A chart shows its last range until the new one has been loaded.
async function loadCharts() {
  const view = historyView(state);
  const fixed = fixedRange(view);
  const loading = (state.loading = CHARTS.map(({ series }) => new Recent(series, view.range, CHART_POINTS, fixed)));
  for (const chart of loading) {
    await chart.load();
    if (state.loading !== loading) return;
    state.charts.set(chart.series, chart);
    draw();
  }
}

function onDocument(found, isWhole) {
  const range = rangeFor(found);
  const outgrown = !state.history.range && range !== state.range;
  state.range = range;
  if (isWhole) {
    // After a pause or a loss, missing readings are loaded from the agent's memory.
    state.recent.load().then(draw);
    loadCharts();
  } else if (outgrown) {
    loadCharts();
  } else {
    state.recent.add(found);
    for (const chart of state.charts.values()) chart.add(found);
  }
  change({ document: found });
  announce();
}

// The sentence in the title of the tab, and its gravest colour in the icon.
const icon = window.document.querySelector('link[rel=icon]');
const ICONS = { bad: '/static/icon-bad.svg', warning: '/static/icon-warning.svg' };

function announce() {
  if (!state.document) return;
  const { summary, hostname } = state.document;
  const lost = state.link === 'lost';
  const title = `${lost ? 'connection lost' : summary.sentence} · ${hostname}`;
  if (window.document.title !== title) window.document.title = title;
  const href = ICONS[lost ? 'bad' : summary.tone] || '/static/icon.svg';
  if (icon.getAttribute('href') !== href) icon.setAttribute('href', href);
}

// How many cards fit next to each other.
function mostColumns() {
  const rem = parseFloat(getComputedStyle(window.document.documentElement).fontSize);
  return Math.max(1, Math.floor((window.innerWidth - 2.2 * rem) / (18.3 * rem)));
}

// As narrow as a phone: as in the style sheet.
function isNarrow() {
  return window.innerWidth <= 640;
}

window.addEventListener('resize', () => {
  const shape = { most: mostColumns(), narrow: isNarrow() };
  if (shape.most !== state.most || shape.narrow !== state.narrow) change({ ...shape, turn: state.turn + 1 });
});

function onLink(link) {
  if (link === state.link) return;
  change({ link, lostAt: Date.now() });
  announce();
}

// While the connection is lost, only the seconds since then are updated.
setInterval(() => state.link === 'lost' && draw(), 1000);

window.addEventListener('keydown', (event) => {
  if (event.key !== 'Escape') return;
  if (state.focus || state.show) choose({ focus: null, show: '' });
  else if (state.history.from) onRange({ ...state.history, from: 0, to: 0 });
});

function Page(props) {
  const { document: found, focus } = props;
  if (!found) {
    return html`<header class="bar"><p class="mark">gpucommons</p></header>
      <main>
        <p class="quiet" role="status">
          ${props.link === 'lost' ? 'The agent does not answer. Trying again …' : 'Connecting to the agent …'}
        </p>
      </main>`;
  }
  const bright = lit(found, focus);
  const chosen = found.summary.parts.find((part) => part.name === props.show && part.slots.length) || null;
  return html`<a class="skip" href="#gpus">Skip to the readings</a>
    <${Header} ...${props} />
    <main class=${classes(props.link !== 'live' && 'old')} data-sequence=${found.sequence}>
      ${sections(props, chosen, bright).map(
        ([name, draw]) => html`<${Lazy} key=${name} tag="div" kind="part-${name}" turn=${props.turn} draw=${draw} />`,
      )}
    </main>
    ${props.link === 'lost' && html`<${LinkLost} found=${found} lostAt=${props.lostAt} />`}
    <footer class="quiet">
      snapshot <span id="sequence">${found.sequence}</span> · <a href="/metrics">metrics</a> · <a href="/api/v1/openapi.json">API</a> ·
      ${' '}<a href="/plain">sources</a> · <a href="/glossary">glossary</a>
    </footer>`;
}

// In the order of the questions: what is wrong, free, idle; which GPUs do what; what it costs; what waits; who and how.
function sections({ document: found, ...props }, chosen, bright) {
  const view = historyView(props);
  const shared = { document: found, turn: props.turn, lit: bright, onFocus };
  const charted = { document: found, charts: props.charts, narrow: props.narrow };
  return [
    ['now', () => html`<${Now} document=${found} chosen=${chosen} onChoose=${onChoose} />`],
    ['gpus', () => html`<${Gpus} ...${shared} recent=${props.recent} chosen=${chosen} most=${props.most} />`],
    ['accounts', () => html`<${Accounts} ...${shared} period=${props.period} onPick=${onPeriod} />`],
    ['queue', () => html`<${Queue} document=${found} lit=${bright} narrow=${props.narrow} />`],
    ['who', () => html`<${Who} ...${shared} view=${props.who} hostUse=${props.hostUse} onView=${onView} />`],
    ['turns', () => html`<${Turns} ...${shared} narrow=${props.narrow} />`],
    ['events', () => html`<${Events} document=${found} />`],
    ['history', () => html`<${History} ...${{ ...charted, view, onRange }} onView=${onHistory} />`],
    ['node', () => html`<${Node} document=${found} />`],
  ];
}

// Lies over the page, so that nothing on it moves.
function LinkLost({ found, lostAt }) {
  const now = Date.now() / 1000;
  return html`<p class="link-lost" role="alert">
    Connection lost ${duration(now - lostAt / 1000)} ago; shown as of ${clock(found.time_unix_s, now)}. Trying again …
  </p>`;
}

function Header({ document: found, link, focus }) {
  const firing = found.alerts ? Object.values(found.alerts).filter((alert) => alert.state === 'active').length : 0;
  return html`<header class="bar">
    <p class="mark">gpucommons</p>
    <h1 class="host">${found.hostname}</h1>
    ${found.simulated && html`<p class="simulated">SIMULATED: ${found.simulated}</p>`}
    <nav aria-label="sections">
      <ul>${root.dataset.fleet && html`<li key="fleet"><a href=${root.dataset.fleet}>Fleet</a></li>`}
        ${SECTIONS.map(
          ([id, title]) =>
            html`<li key=${id}>
            <a href="#${id}">${title}${id === 'events' && firing ? html` <span class="count">${firing}</span>` : ''}</a>
          </li>`,
        )}</ul>
    </nav>
    ${
      focus &&
      html`<p class="focus">
      <span>only <bdi>${focus.label}</bdi></span>
      <button type="button" aria-label="show all owners again" onClick=${() => onFocus(null)}>×</button>
    </p>`
    }
    <p class=${classes('link', link)} data-link=${link}>
      <span class="dot" aria-hidden="true"></span>
      <span role="status">${link === 'live' ? 'live' : 'lost'}</span>
    </p>
  </header>`;
}

hostUse.watch(state.who.by === 'process');
new Live('/api/v1/stream', onDocument, onLink);
draw();
