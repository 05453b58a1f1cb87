// A card for each GPU: state, utilisation, memory by owner, power, temperature and health. A lost GPU keeps its card.
import { html, classes } from '../html.js';
import { Lazy } from '../lazy.js';
import { Absent, Bar, Section, Spark, Swatch } from '../parts.js';
import { bytes, celsius, clock, count, duration, megahertz, MISSING, percent, watts, words } from '../format.js';
import { colour, ownerLabel } from '../owners.js';
import { isChosen, QUEUED, queuedByGpu, slotsByGpu, stateWord } from '../states.js';

const SPARK_POINTS = 60; // at least: a line of a few seconds does not fill the whole width
const LEGEND = 4;
const MARKS = { warning: 'warn', critical: 'bad' };

// As many columns as fit, and rows of equal length: 8 cards are 4 + 4, not 6 + 2.
export const columnsFor = (cards, most) => Math.ceil(cards / Math.ceil(cards / most));

export function Gpus({ document, recent, turn, lit, chosen, most, onFocus }) {
  const { gpus, who } = document;
  if (!gpus) {
    return html`<${Section} id="gpus" title="GPUs">
      <${Absent} document=${document} source="nvml" otherwise="No GPU readings." />
      ${!document.simulated && html`<p class="quiet">To see a simulated node with GPUs: gpucommons up --simulate lab</p>`}
    </${Section}>`;
  }
  const cards = Object.keys(gpus.by_uuid).sort((a, b) => gpus.by_uuid[a].index - gpus.by_uuid[b].index);
  const lost = cards.filter((uuid) => !gpus.by_uuid[uuid].up).length;
  const note = `${gpus.present} of ${gpus.expected} present${lost ? `, ${lost} lost` : ''}`;
  const slots = slotsByGpu(document);
  const queued = queuedByGpu(document);
  const cardOf = (uuid) => {
    const gpu = gpus.by_uuid[uuid];
    const own = slots.get(uuid) || [];
    if (!gpu.up) {
      const problem = document.problems[`gpu_lost/${uuid}`];
      const dim = chosen && !chosen.slots.includes(String(gpu.index));
      return html`<${Lost} uuid=${uuid} gpu=${gpu} problem=${problem} now=${document.time_unix_s} dim=${dim} />`;
    }
    const values = (recent && recent.columns.get(uuid)) || [];
    const parts = memoryParts(uuid, gpu, who);
    return html`<${Card}
      uuid=${uuid}
      gpu=${gpu}
      parts=${parts}
      values=${values}
      slots=${own}
      queued=${queued.get(uuid)}
      chosen=${chosen}
      now=${document.time_unix_s}
      lit=${lit}
      onFocus=${onFocus}
    />`;
  };
  return html`<${Section} id="gpus" title="GPUs" note=${note} word="slot">
    <ul class="cards" style=${{ '--columns': cards.length ? columnsFor(cards.length, most) : 1 }}>
      ${cards.map((uuid) => html`<${Lazy} key=${uuid} tag="li" turn=${turn} draw=${() => cardOf(uuid)} />`)}
    </ul>
  </${Section}>`;
}

// The memory of one GPU as parts whose sum is what is not free: owners, unattributed, and reserved by the driver.
export function memoryParts(uuid, gpu, who) {
  const total = gpu.memory_total_bytes;
  const used = gpu.memory_used_bytes;
  if (total === null || used === null) return { total: null, parts: [] };
  const parts = [];
  if (who) {
    for (const key of Object.keys(who.owners)) {
      const share = who.owners[key].by_gpu[uuid];
      if (share && share.memory_bytes) {
        parts.push({ key, owner: true, label: ownerLabel(who.owners, key), bytes: share.memory_bytes });
      }
    }
    parts.sort((a, b) => b.bytes - a.bytes || (a.key < b.key ? -1 : 1));
    const rest = who.unattributed[uuid] || {};
    for (const reason of Object.keys(rest)) {
      if (rest[reason].memory_bytes) {
        parts.push({ key: `rest/${reason}`, label: words(reason), bytes: rest[reason].memory_bytes });
      }
    }
  } else if (used) {
    parts.push({ key: 'rest/unknown', label: 'used, owners unknown', bytes: used });
  }
  if (gpu.memory_reserved_bytes) {
    parts.push({ key: 'reserved', label: 'reserved by the driver', bytes: gpu.memory_reserved_bytes });
  }
  return { total, parts };
}

const isDim = (lit, part) => lit && !(part.owner && lit.owners.has(part.key));

function Card({ uuid, gpu, parts, values, slots, queued, chosen, now, lit, onFocus }) {
  const { level, reasons } = gpu.health;
  const hot = 'hot' in reasons;
  const index = String(gpu.index);
  const shown = !chosen || chosen.slots.some((name) => name === index || name.startsWith(`${index}.`));
  const dim = !shown || (lit && !parts.parts.some((part) => part.owner && lit.owners.has(part.key)));
  return html`<article
    class=${classes('card', MARKS[level], dim && 'dim')}
    aria-labelledby="gpu-${gpu.index}"
    data-uuid=${uuid}
    data-level=${level}
  >
    <${Title} gpu=${gpu} />
    <${State} slots=${slots} queued=${queued} />
    <div class="use">
      <p class="big"><span data-f="use_ratio">${percent(gpu.use_ratio)}</span></p>
      <${Spark}
        values=${values}
        length=${Math.max(SPARK_POINTS, values.length)}
        label="GPU ${gpu.index} ${gpu.mig_enabled ? 'activity of its MIG devices' : 'utilisation'}, last 5 minutes"
      />
    </div>
    <div class="memory">
      <p class="pair">
        <span>Memory</span>
        <span>
          <b data-f="memory_used_bytes">${bytes(gpu.memory_used_bytes)}</b> /
          ${' '}<span data-f="memory_total_bytes">${bytes(gpu.memory_total_bytes)}</span>
        </span>
      </p>
      <${MemoryBar} parts=${parts} lit=${lit} />
      <${Legend} parts=${parts.parts} lit=${lit} onFocus=${onFocus} />
    </div>
    ${gpu.mig_enabled && html`<${Mig} gpu=${gpu} slots=${slots} chosen=${chosen} />`}
    <dl class="gauges">
      <div>
        <dt class="hidden">Power</dt>
        <dd>
          <b data-f="power_watts">${watts(gpu.power_watts)}</b> / <span data-f="power_limit_watts">${watts(gpu.power_limit_watts)}</span>
        </dd>
        <dd class="line"><${Bar} ratio=${share(gpu.power_watts, gpu.power_limit_watts)} /></dd>
      </div>
      <div>
        <dt class="hidden">Temperature</dt>
        <dd class=${classes(hot && 'bad')}>
          <b data-f="temperature_celsius">${celsius(gpu.temperature_celsius)}</b> /
          ${' '}<span data-f="temperature_slowdown_celsius">${celsius(gpu.temperature_slowdown_celsius)}</span>
        </dd>
        <dd class="line">
          <${Bar} ratio=${share(gpu.temperature_celsius, gpu.temperature_slowdown_celsius)} level=${hot ? 'bad' : ''} />
        </dd>
      </div>
    </dl>
    <p class="facts">
      ${Object.keys(reasons).map(
        (reason) =>
          html`<span key=${reason} class=${`mark ${MARKS[reasons[reason].level]}`} data-reason=${reason}>${words(reason)}</span>`,
      )}
      <span>SM <span data-f="clock_sm_mhz">${megahertz(gpu.clock_sm_mhz)}</span></span>
      <span><span data-f="processes">${count(gpu.processes)}</span> ${gpu.processes === 1 ? 'process' : 'processes'}</span>
      ${gpu.throttle_reasons !== null && gpu.throttle_reasons.includes('sw_power_cap') && html`<span>power cap</span>`}
      ${gpu.throttle_reasons === null && html`<span>throttle reasons ${MISSING}</span>`}
      <${LastXid} xid=${gpu.xid} now=${now} />
    </p>
  </article>`;
}

// The largest owners; what the others have is one line, and the section of owners has their names.
function Legend({ parts, lit, onFocus }) {
  const owned = parts.filter((part) => part.key !== 'reserved');
  const named = owned.length > LEGEND ? owned.slice(0, LEGEND - 1) : owned;
  const others = owned.slice(named.length);
  return html`<ul class=${classes('legend', owned.length > 2 && 'two')}>
    ${named.map(
      (part) =>
        html`<li key=${part.key} class=${classes(isDim(lit, part) && 'dim')} data-part=${part.key}>
          <${Swatch} name=${part.owner ? colour(part.label) : 'rest'} />
          ${
            part.owner
              ? html`<button
                type="button"
                class="name"
                title=${part.label}
                onClick=${() => onFocus({ by: 'owner', id: part.key, label: part.label })}
              ><bdi>${part.label}</bdi></button>`
              : html`<span class="name none">${part.label}</span>`
          }
          <span class="amount" data-f="part">${bytes(part.bytes)}</span>
        </li>`,
    )}
    ${
      others.length > 0 &&
      html`<li key="others" data-others=${others.length}>
      <a class="name" href="#who">${others.length} more</a>
      <span class="amount">${bytes(others.reduce((sum, part) => sum + part.bytes, 0))}</span>
    </li>`
    }
  </ul>`;
}

const MIG_STATES = ['free', 'held_idle', 'busy', 'reserved', 'unknown'];

// The state of a GPU, or how many of its MIG devices are in each state; always one line, so that the card keeps its size.
function State({ slots, queued }) {
  const waits = queued ? QUEUED.filter((name) => queued[name]) : [];
  const chips = waits.map(
    (name) => html`<span key=${name} class="state" data-queued=${name}>${queued[name]} ${name}</span>`,
  );
  if (!slots.length) return html`<p class="states"><span class="state unknown">unknown</span>${chips}</p>`;
  if (slots.length === 1) {
    const [slot] = slots;
    return html`<p class="states" data-state=${slot.state}>
      <span class="state ${slot.state}">${stateWord(slot.state)}</span>${chips}
      ${' '}<span class="quiet" title=${slot.detail}><bdi>${slot.detail}</bdi></span>
    </p>`;
  }
  const counts = new Map();
  for (const { state } of slots) counts.set(state, (counts.get(state) || 0) + 1);
  return html`<p class="states">
    ${MIG_STATES.filter((state) => counts.has(state)).map(
      (state) => html`<span key=${state} class="state ${state}">${counts.get(state)} ${stateWord(state)}</span>`,
    )}${chips}
  </p>`;
}

function Title({ gpu }) {
  return html`<header>
    <h3 id="gpu-${gpu.index}"><span class="index">${gpu.index}</span> ${gpu.name}</h3>
    <p class="quiet">${gpu.pci_bus_id.replace(/^0000/, '')}</p>
  </header>`;
}

const LastXid = ({ xid, now }) =>
  xid.last_code !== null &&
  html`<span class="quiet">last XID ${xid.last_code} at ${clock(xid.last_unix_s, now)}</span>`;

const share = (value, limit) => (value === null || !limit ? null : value / limit);

const fillOf = ({ key }) => (key === 'reserved' ? 'reserved' : 'rest');

function MemoryBar({ parts, lit }) {
  return html`<div class="stack" aria-hidden="true">
    ${parts.parts.map(
      (part) =>
        html`<span
          key=${part.key}
          class=${classes('part', part.owner ? colour(part.label) : fillOf(part), isDim(lit, part) && 'dim')}
          style=${{ width: `${((100 * part.bytes) / parts.total).toFixed(2)}%` }}
        ></span>`,
    )}
  </div>`;
}

const CELLS = { free: 'free', held_idle: 'idle', unknown: '?', reserved: 'kept' };

// The MIG devices at their places on the GPU, to scale: in memory slices, or in compute slices if no place is known. The
// list below says the same in words: for a reader without a mouse, and in place of the short words of a narrow cell.
function Mig({ gpu, slots, chosen }) {
  const instances = Object.entries(gpu.mig);
  const known = new Map(slots.map((slot) => [slot.uuid, slot]));
  const placed = instances.length > 0 && instances.every(([, mig]) => mig.placement_start_slices !== null);
  const width = placed ? 8 : 7;
  let next = 0;
  const rows = instances.map(([uuid, mig]) => {
    const start = placed ? mig.placement_start_slices : next;
    const size = placed ? mig.placement_size_slices : mig.gpu_slices;
    next = start + size;
    const slot = known.get(uuid);
    const state = slot ? slot.state : 'unknown';
    const busy = mig.activity ? percent(mig.activity.graphics_ratio) : MISSING;
    const words = [stateWord(state), slot ? slot.detail : '', state === 'busy' && busy].filter(Boolean).join(' ');
    return { uuid, mig, start, size, state, busy, words };
  });
  return html`<div class="mig">
    ${!rows.length && html`<p class="quiet">MIG is on, without an instance.</p>`}
    <ul class="slices" style=${{ gridTemplateColumns: `repeat(${width}, 1fr)` }} aria-hidden="true">
      ${rows.map(({ uuid, mig, start, size, state, busy, words }) => {
        const used = mig.memory_used_bytes === null ? null : mig.memory_used_bytes / mig.memory_total_bytes;
        return html`<li
          key=${uuid}
          class=${classes(state, !isChosen(chosen, mig.slot) && 'dim')}
          data-mig=${uuid}
          data-state=${state}
          style=${{ gridColumn: `${start + 1} / span ${size}` }}
          title="${mig.slot} (${mig.profile}): ${words}"
        >
          <div class="fill" style=${{ height: `${100 * Math.min(1, used || 0)}%` }}></div>
          <span class="profile">${mig.slot}</span>
          <span class="profile" data-f="cell">${CELLS[state] || busy}</span>
        </li>`;
      })}
    </ul>
    <ul class="in-words">
      ${rows.map(
        ({ uuid, mig, words }) =>
          html`<li key=${uuid} class=${classes(!isChosen(chosen, mig.slot) && 'dim')}>
          <b>${mig.slot}</b> ${mig.profile}, <bdi>${words}</bdi>, ${bytes(mig.memory_used_bytes)} / ${bytes(mig.memory_total_bytes)}
        </li>`,
      )}
    </ul>
  </div>`;
}

function Lost({ uuid, gpu, problem, now, dim }) {
  return html`<article
    class=${classes('card lost', dim && 'dim')}
    aria-labelledby="gpu-${gpu.index}"
    data-uuid=${uuid}
    data-level=${gpu.health.level}
    data-state="lost"
  >
    <${Title} gpu=${gpu} />
    <p class="big bad">Lost</p>
    <p>since <span data-f="since_unix_s">${clock(gpu.since_unix_s, now)}</span>, ${duration(now - gpu.since_unix_s)} ago</p>
    ${
      problem &&
      html`<p><bdi data-f="problem">${problem.sentence}</bdi></p>
      <p><b>What to do:</b> <span data-f="remedy">${problem.remedy}</span></p>`
    }
    <p class="marks"><${LastXid} xid=${gpu.xid} now=${now} /></p>
  </article>`;
}
