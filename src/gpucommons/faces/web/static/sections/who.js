// Use of the GPUs by owner, user, pod, container or process: sorted, filtered, searched. A click dims all other rows.
import { html, classes } from '../html.js';
import { Component } from '../vendor/preact.mjs';
import { Lazy, Still } from '../lazy.js';
import { Absent, Choice, Hidden, isHidden, Section, Swatch, swatches } from '../parts.js';
import { bytes, count, duration, hours, MISSING, percent, watts, words } from '../format.js';
import { identity, ownerLabel, ownerNames } from '../owners.js';

export const GROUPINGS = [
  ['owner', 'Owners'],
  ['user', 'Users'],
  ['pod', 'Pods'],
  ['container', 'Containers'],
  ['process', 'Processes'],
];
const COLUMNS = [
  { key: 'label', title: 'Name', text: true },
  { key: 'memory_bytes', title: 'Memory', show: bytes, basis: 'memory_basis' },
  { key: 'sm_ratio', title: 'SM', show: percent, basis: 'sm_basis' },
  { key: 'power_watts', title: 'Power', show: watts, basis: 'power_basis' },
  { key: 'gpu_hours_today', title: 'GPU-hours today', show: hours },
  { key: 'gpus', title: 'GPU', show: (indexes) => indexes.join(' ') },
  { key: 'processes', title: 'Processes', show: count },
];
// A process has no accounts; what it does on the host is asked for while the viewer looks at processes.
const PROCESS_COLUMNS = [
  { key: 'label', title: 'Name', text: true },
  { key: 'user', title: 'User', text: true, show: (name) => name || MISSING },
  { key: 'pid', title: 'PID', show: count },
  ...COLUMNS.slice(1, 4),
  { key: 'cpu_ratio', title: 'CPU', show: percent },
  { key: 'age_s', title: 'Time', show: duration },
  COLUMNS.find(({ key }) => key === 'gpus'),
];
const columnsOf = (by) => (by === 'process' ? PROCESS_COLUMNS : COLUMNS);
const ABOUT = '≈\u202f';
const SHOWN = 100;
const CHUNK = 10;

export function Who({ document, view, hostUse, turn, lit, onView, onFocus }) {
  const { who } = document;
  if (!who) {
    return html`<${Section} id="who" title="Who">
      ${
        document.gpus
          ? html`<${Absent} document=${document} source="nvml" otherwise="No GPU processes are known." />`
          : html`<p class="quiet">No process uses a GPU: this node has none.</p>`
      }
    </${Section}>`;
  }
  const columns = columnsOf(view.by);
  const all = rowsOf(document, view.by, view.gpu, hostUse);
  const rows = steady(searched(document, all, view), view, document.sequence);
  const shown = view.all ? rows : rows.slice(0, SHOWN);
  const rest = view.by === 'owner' ? restOf(document, view) : [];
  const indexes = gpuIndexes(document);
  const tools = () =>
    html`<${Choice} label="group by" options=${GROUPINGS} value=${view.by} onPick=${(by) => onView({ by })} />
    <label class="field"><span class="hidden">GPU</span>
      <select value=${view.gpu} onChange=${(event) => onView({ gpu: event.target.value })}>
        <option value="">all GPUs</option>
        ${indexes.map((index) => html`<option key=${index} value=${String(index)}>GPU ${index}</option>`)}
      </select>
    </label>
    <label class="field"><span class="hidden">search</span>
      <input type="search" placeholder="search" value=${view.text} onInput=${(event) => onView({ text: event.target.value })} />
    </label>`;
  return html`<${Section}
    id="who"
    title="Who"
    note=${`${rows.length} of ${all.length}`}
    word="owner"
    tools=${html`<${Still} on=${[view, indexes.join()]} draw=${tools} />`}
  >
    <div class="scroll rolled" tabindex="0" role="region" aria-label="use of the GPUs">
      <table class="rows who">
        <caption class="hidden">Use of the GPUs by ${view.by}</caption>
        <${Still}
          on=${[view.sort, view.by]}
          draw=${() =>
            html`<thead>
            <tr>
              ${columns.map((column) => html`<${Head} key=${column.key} column=${column} sort=${view.sort} onView=${onView} />`)}
            </tr>
          </thead>`}
        />
        ${chunks(shown).map(
          (rows, at) =>
            html`<${Lazy}
              key=${at}
              tag="tbody"
              turn=${turn}
              draw=${() =>
                rows.map(
                  (row) =>
                    html`<${Row}
                      key=${row.id}
                      row=${row}
                      by=${view.by}
                      lit=${!lit || isLit(lit, row)}
                      dims=${Boolean(lit)}
                      onFocus=${onFocus}
                    />`,
                )}
            />`,
        )}
        <tbody>${rest.map((row) => html`<${Rest} key=${row.id} row=${row} dim=${Boolean(lit)} />`)}</tbody>
      </table>
    </div>
    <${Hidden} document=${document} section="who" />
    ${
      !rows.length &&
      (all.length || !isHidden(document, 'who')) &&
      html`<p class="quiet">${all.length ? 'No row matches.' : `No ${view.by} uses a GPU.`}</p>`
    }
    ${
      rows.length > shown.length &&
      html`<p><button type="button" onClick=${() => onView({ all: true })}>Show all ${rows.length}</button></p>`
    }
    ${who.view.scope !== 'host' && html`<p class="quiet">${who.view.sentence}</p>`}
    <p class="quiet">
      ≈: a share of what the GPU reports. Without ≈: measured for the process. SM is a share of the time of one GPU: on
      several GPUs it may exceed 100 %.
    </p>
  </${Section}>`;
}

const chunks = (rows) =>
  Array.from({ length: Math.ceil(rows.length / CHUNK) }, (_, at) => rows.slice(at * CHUNK, (at + 1) * CHUNK));
const gpuIndexes = ({ gpus }) =>
  gpus
    ? Object.values(gpus.by_uuid)
        .map((gpu) => gpu.index)
        .sort((a, b) => a - b)
    : [];

// Rows of one grouping, on one GPU (an index) or on all: { id, label, detail, gpus: [index], processes, memory_bytes, ..., owner }
export function rowsOf(document, by, gpu = '', hostUse = {}) {
  const { who } = document;
  const on = uuidOf(document, gpu);
  if (by === 'owner') return ownerRows(who, on);
  const keys = Object.keys(who.processes).filter((key) => !on || who.processes[key].gpu_uuid === on);
  if (by === 'process') return keys.map((key) => processRow(who, key, hostUse[key], document.time_unix_s));
  const groups = new Map();
  for (const key of keys) {
    const process = who.processes[key];
    const id = identity(process, key, by);
    if (id === null) continue;
    const found = groups.get(id);
    if (found) found.push(process);
    else groups.set(id, [process]);
  }
  return [...groups].map(([id, processes]) => groupRow(who, by, id, processes, on));
}

function uuidOf({ gpus }, index) {
  if (index === '' || !gpus) return null;
  return Object.keys(gpus.by_uuid).find((uuid) => gpus.by_uuid[uuid].index === Number(index)) || null;
}

function ownerRows(who, on) {
  return Object.keys(who.owners)
    .filter((key) => !on || who.owners[key].by_gpu[on])
    .map((key) => {
      const owner = who.owners[key];
      const shares = on ? [owner.by_gpu[on]] : Object.values(owner.by_gpu);
      return {
        ...owner,
        ...(on && owner.by_gpu[on]),
        id: key,
        owner: key,
        owners: [ownerLabel(who.owners, key)],
        label: ownerLabel(who.owners, key),
        detail: owner.kind,
        gpus: shares.map((share) => share.gpu_index).sort((a, b) => a - b),
      };
    });
}

function groupRow(who, by, id, processes, on) {
  const first = processes[0];
  return {
    id,
    owner: first.owner,
    owners: ownerNames(who, processes),
    label: (by === 'container' ? first.container : first.account) || id,
    detail: by === 'container' ? first.image || '' : '',
    gpus: [...new Set(processes.map((process) => process.gpu_index))].sort((a, b) => a - b),
    processes: new Set(processes.map((process) => process.pid)).size,
    // The ledger has hours for users and pods, not for containers.
    gpu_hours_today: by === 'container' ? null : hoursToday(who, first.account, on),
    ...sums(processes),
  };
}

function hoursToday(who, account, on) {
  const found = who.accounts[account];
  if (!found) return null;
  return on ? (found.by_gpu[on] ?? null) : found.gpu_hours_today;
}

function processRow(who, key, host, now) {
  const process = who.processes[key];
  return {
    ...process,
    id: key,
    owners: process.owner ? [ownerLabel(who.owners, process.owner)] : [],
    label: process.name || 'unknown',
    detail: process.owner ? ownerLabel(who.owners, process.owner) : words(process.reason || ''),
    user: process.user || process.account,
    cpu_ratio: host ? host.cpu_ratio : null,
    age_s: host && host.start_unix_s !== null ? Math.max(0, now - host.start_unix_s) : null,
    gpus: [process.gpu_index],
    processes: 1,
    gpu_hours_today: null,
  };
}

const AMOUNTS = [
  ['memory_bytes', 'memory_basis'],
  ['sm_ratio', 'sm_basis'],
  ['power_watts', 'power_basis'],
];

// The sum of what is known, null if nothing is; measured only if every part is.
function sums(processes) {
  const found = {};
  for (const [amount, basis] of AMOUNTS) {
    found[amount] = null;
    found[basis] = null;
    for (const process of processes) {
      if (process[amount] !== null) found[amount] = (found[amount] || 0) + process[amount];
      if (process[basis] !== null && found[basis] !== 'apportioned') found[basis] = process[basis];
    }
  }
  return found;
}

// What has no owner: one row for each reason, over the chosen GPUs.
function restOf({ who }, { gpu, text }) {
  const rows = new Map();
  for (const uuid of Object.keys(who.unattributed)) {
    for (const [reason, part] of Object.entries(who.unattributed[uuid])) {
      if (gpu !== '' && part.gpu_index !== Number(gpu)) continue;
      // Less than the printed precision, such as the remainder of rounding, would be a row of zeros.
      if (!(part.memory_bytes >= 2 ** 19 || part.sm_ratio >= 0.0005 || part.power_watts >= 0.5)) continue;
      const row = rows.get(reason) || {
        id: reason,
        label: words(reason),
        sentence: part.sentence,
        gpus: [],
        parts: [],
      };
      row.gpus.push(part.gpu_index);
      row.parts.push({ ...part, memory_basis: null, sm_basis: null, power_basis: null });
      rows.set(reason, row);
    }
  }
  const found = [...rows.values()].map((row) => ({ ...row, ...sums(row.parts), gpus: row.gpus.sort((a, b) => a - b) }));
  return filtered(found, { text });
}

const SEARCHED = [
  ...['name', 'command', 'pid', 'user', 'account', 'uid', 'pod', 'namespace'],
  ...['container', 'container_id', 'image', 'job', 'unit', 'slot'],
];

// A row matches by its name, or by one of its processes: user, command, pid, pod, container, job or model of the GPU.
function searched(document, rows, { text, by, gpu }) {
  const sought = text.trim().toLowerCase();
  if (!sought) return rows;
  const { who, gpus } = document;
  const on = uuidOf(document, gpu);
  const found = new Set(filtered(rows, { text }).map((row) => row.id));
  for (const key of Object.keys(who.processes)) {
    const process = who.processes[key];
    if (on && process.gpu_uuid !== on) continue;
    const model = gpus && gpus.by_uuid[process.gpu_uuid] ? gpus.by_uuid[process.gpu_uuid].name : '';
    const all = [model, ...SEARCHED.map((name) => process[name] ?? '')].join(' ').toLowerCase();
    if (all.includes(sought)) found.add(identity(process, key, by));
  }
  return rows.filter((row) => found.has(row.id));
}

function filtered(rows, { text }) {
  const sought = text.trim().toLowerCase();
  return rows.filter((row) => `${row.label} ${row.detail || ''}`.toLowerCase().includes(sought));
}

function sorted(rows, { key, down }) {
  const value = (row) => (key === 'gpus' ? (row.gpus[0] ?? null) : row[key]);
  const order = (a, b) => {
    const x = value(a);
    const y = value(b);
    if (x === y) return 0;
    // Rows without a reading come last in both directions.
    if (x === null || x === undefined) return 1;
    if (y === null || y === undefined) return -1;
    const less = typeof x === 'string' ? x.localeCompare(y) < 0 : x < y;
    return less === down ? 1 : -1;
  };
  return rows.sort((a, b) => order(a, b) || (a.id < b.id ? -1 : 1));
}

// Rows that are nearly equal must not change places every second: they are sorted again when the viewer changes the
// view, otherwise every few snapshots. New rows come last until then.
const SETTLE = 5; // snapshots
let order = { view: null, sequence: 0, places: new Map() };

function steady(rows, view, sequence) {
  if (order.view !== view || Math.abs(sequence - order.sequence) >= SETTLE) {
    const found = sorted(rows, view.sort);
    order = { view, sequence, places: new Map(found.map((row, at) => [row.id, at])) };
    return found;
  }
  const place = (row) => order.places.get(row.id) ?? Infinity;
  return rows.sort((a, b) => place(a) - place(b) || (a.id < b.id ? -1 : 1));
}

function Head({ column, sort, onView }) {
  const active = sort.key === column.key;
  const down = active ? !sort.down : !column.text;
  const order = active ? (sort.down ? 'descending' : 'ascending') : 'none';
  return html`<th scope="col" aria-sort=${order} class=${classes(!column.text && 'number')}>
    <button type="button" onClick=${() => onView({ sort: { key: column.key, down } })}>
      ${column.title}<span class="arrow" aria-hidden="true">${active ? (sort.down ? ' ↓' : ' ↑') : ''}</span>
    </button>
  </th>`;
}

const isLit = (lit, row) => (row.owner && lit.owners.has(row.owner)) || lit.processes.has(row.id);

const textsOf = (row, by) =>
  columnsOf(by)
    .slice(1)
    .map(({ key, basis, show }) => (row[basis] === 'apportioned' ? ABOUT : '') + show(row[key]));

const nameOf = (row) => [row.label, row.detail, row.command, ...row.owners].join();
// The command of a process is worth more than its owner, who has a column.
const detailOf = (row, by) => (by === 'process' && row.command) || row.detail;

// A row is drawn again only when something that it shows has changed: most rows of a long table do not change every second.
class Row extends Component {
  shouldComponentUpdate(next) {
    const now = this.props;
    const texts = textsOf(next.row, next.by);
    const same = this.texts && this.texts.length === texts.length && texts.every((text, at) => text === this.texts[at]);
    this.texts = texts;
    if (!same || nameOf(next.row) !== nameOf(now.row)) return true;
    return next.lit !== now.lit || next.dims !== now.dims || next.by !== now.by || next.onFocus !== now.onFocus;
  }

  render({ row, by, lit, dims, onFocus }) {
    return html`<tr class=${classes(!lit && 'dim', dims && lit && 'lit')} data-row=${row.id}>
      <th scope="row" class="name">
        <div>
          ${swatches(row.owners)}
          <button type="button" onClick=${() => onFocus({ by, id: row.id, label: row.label })}><bdi>${row.label}</bdi></button>
          ${detailOf(row, by) && html`<span class="detail"><bdi>${detailOf(row, by)}</bdi></span>`}
        </div>
      </th>
      ${(this.texts || textsOf(row, by)).map((text, at) => {
        const { key, text: isText } = columnsOf(by)[at + 1];
        return html`<td class=${isText ? '' : 'number'} data-f=${key}>${text}</td>`;
      })}
    </tr>`;
  }
}

function Rest({ row, dim }) {
  return html`<tr class=${classes('rest', dim && 'dim')} data-rest=${row.id}>
    <th scope="row" class="name">
      <div><${Swatch} name="rest" /><span class="none">unattributed: ${row.label}</span></div>
    </th>
    ${COLUMNS.slice(1).map(
      ({ key, show }) => html`<td key=${key} class="number" data-f=${key}>${show(row[key] ?? null)}</td>`,
    )}
  </tr>`;
}
