// A card for each GPU: state, utilisation, memory by owner, power, temperature and health. A lost GPU keeps its card.
import { html, classes } from '../html.js';
import { Lazy } from '../lazy.js';
import { Absent, Bar, Section, Spark, Swatch } from '../parts.js';
import { bytes, celsius, clock, count, duration, megahertz, MISSING, percent, watts, words } from '../format.js';
import { colour, ownerLabel } from '../owners.js';
import { holdersOf, isChosen, QUEUED, queuedByGpu, slotDetail, slotsByGpu, stateWord } from '../states.js';

const MIG_SLICES = 7;
const SPARK_POINTS = 60; // at least: a line of a few seconds does not fill the whole width
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
    if (!gpu.up) return html`<${Lost} uuid=${uuid} gpu=${gpu} problem=${document.problems[`gpu_lost/${uuid}`]} now=${document.time_unix_s} dim=${chosen && !chosen.slots.includes(String(gpu.index))} />`;
    const values = (recent && recent.columns.get(uuid)) || [];
    const parts = memoryParts(uuid, gpu, who);
    return html`<${Card} uuid=${uuid} gpu=${gpu} parts=${parts} values=${values} slots=${own} queued=${queued.get(uuid)} chosen=${chosen} now=${document.time_unix_s} lit=${lit} onFocus=${onFocus} />`;
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
      if (share && share.memory_bytes) parts.push({ key, owner: true, label: ownerLabel(who.owners, key), bytes: share.memory_bytes });
    }
    parts.sort((a, b) => b.bytes - a.bytes || (a.key < b.key ? -1 : 1));
    const rest = who.unattributed[uuid] || {};
    for (const reason of Object.keys(rest)) {
      if (rest[reason].memory_bytes) {
        parts.push({ key: `rest/${reason}`, label: words(reason), why: rest[reason].sentence, bytes: rest[reason].memory_bytes });
      }
    }
  } else if (used) {
    parts.push({ key: 'rest/unknown', label: 'used, owners unknown', why: 'the processes of this GPU are unknown', bytes: used });
  }
  if (gpu.memory_reserved_bytes) {
    parts.push({ key: 'reserved', label: 'reserved by the driver', why: 'not used by any process', bytes: gpu.memory_reserved_bytes });
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
  return html`<article class=${classes('card', MARKS[level], dim && 'dim')} aria-labelledby="gpu-${gpu.index}" data-uuid=${uuid} data-level=${level}>
    <${Title} uuid=${uuid} gpu=${gpu} />
    <${State} slots=${slots} queued=${queued} now=${now} />
    <div class="use">
      ${gpu.mig_enabled
        ? html`<p class="big" title="activity of the MIG instances, by their slices"><span data-f="mig_activity">${percent(migActivity(gpu))}</span></p>`
        : html`<p class="big"><span data-f="utilization_ratio">${percent(gpu.utilization_ratio)}</span></p>`}
      <${Spark} values=${values} length=${Math.max(SPARK_POINTS, values.length)} label="GPU ${gpu.index} utilisation, last 5 minutes" />
    </div>
    <div class="memory">
      <p class="pair">
        <span>Memory</span>
        <span><b data-f="memory_used_bytes">${bytes(gpu.memory_used_bytes)}</b> / <span data-f="memory_total_bytes">${bytes(gpu.memory_total_bytes)}</span></span>
      </p>
      <${MemoryBar} parts=${parts} lit=${lit} />
      <ul class="legend">
        ${parts.parts
          .filter((part) => part.key !== 'reserved')
          .map(
            (part) =>
              html`<li key=${part.key} class=${classes(isDim(lit, part) && 'dim')} data-part=${part.key} title=${part.why || part.label}>
                <${Swatch} name=${part.owner ? colour(part.label) : 'rest'} />
                ${part.owner
                  ? html`<button type="button" class="name" onClick=${() => onFocus({ by: 'owner', id: part.key, label: part.label })}><bdi>${part.label}</bdi></button>`
                  : html`<span class="name none">${part.label}</span>`}
                <span class="amount" data-f="part">${bytes(part.bytes)}</span>
              </li>`,
          )}
      </ul>
    </div>
    <dl class="gauges">
      <div>
        <dt>Power</dt>
        <dd><b data-f="power_watts">${watts(gpu.power_watts)}</b> / <span data-f="power_limit_watts">${watts(gpu.power_limit_watts)}</span></dd>
        <dd class="line"><${Bar} ratio=${share(gpu.power_watts, gpu.power_limit_watts)} /></dd>
      </div>
      <div>
        <dt>Temperature</dt>
        <dd class=${classes(hot && 'bad')}><b data-f="temperature_celsius">${celsius(gpu.temperature_celsius)}</b> / <span data-f="temperature_slowdown_celsius">${celsius(gpu.temperature_slowdown_celsius)}</span></dd>
        <dd class="line"><${Bar} ratio=${share(gpu.temperature_celsius, gpu.temperature_slowdown_celsius)} level=${hot ? 'bad' : ''} /></dd>
      </div>
    </dl>
    ${gpu.mig_enabled && html`<${Mig} gpu=${gpu} slots=${slots} chosen=${chosen} now=${now} />`}
    <p class="facts">
      <span>SM <span data-f="clock_sm_mhz">${megahertz(gpu.clock_sm_mhz)}</span></span>
      <span>memory <span data-f="clock_memory_mhz">${megahertz(gpu.clock_memory_mhz)}</span></span>
      <span><span data-f="processes">${count(gpu.processes)}</span> ${gpu.processes === 1 ? 'process' : 'processes'}</span>
    </p>
    <p class="marks">
      ${Object.keys(reasons).map(
        (reason) =>
          html`<span key=${reason} class=${`mark ${MARKS[reasons[reason].level]}`} data-reason=${reason} title=${reasons[reason].sentence}>${words(reason)}</span>`,
      )}
      ${gpu.throttle_reasons !== null && gpu.throttle_reasons.includes('sw_power_cap') && html`<span class="mark" title="The GPU uses its whole power limit. This is normal.">power cap</span>`}
      ${gpu.throttle_reasons === null && html`<span class="quiet">throttle reasons ${MISSING}</span>`}
      <${LastXid} xid=${gpu.xid} now=${now} />
    </p>
  </article>`;
}

// The state of a GPU, or how many of its MIG devices are in each state; always one line, so that the card keeps its size.
function State({ slots, queued, now }) {
  const waits = queued ? QUEUED.filter((name) => queued[name]) : [];
  const chips = waits.map((name) => html`<span key=${name} class="state" data-queued=${name}>${queued[name]} ${name}</span>`);
  if (!slots.length) return html`<p class="states"><span class="state unknown">unknown</span>${chips}</p>`;
  if (slots.length === 1) {
    const [slot] = slots;
    return html`<p class="states" data-state=${slot.state} title="${stateWord(slot.state)} ${slotDetail(slot, now)}">
      <span class="state ${slot.state}">${stateWord(slot.state)}</span>${chips} <span class="quiet"><bdi>${slotDetail(slot, now)}</bdi></span>
    </p>`;
  }
  const idle = slots.filter(({ state }) => state === 'held_idle').map((slot) => `${slot.slot} by ${holdersOf(slot)}, ${duration(slot.idle_s)}`);
  const counts = new Map();
  for (const { state } of slots) counts.set(state, (counts.get(state) || 0) + 1);
  return html`<p class="states" title=${idle.length ? `held idle: ${idle.join('; ')}` : ''}>
    ${['free', 'held_idle', 'busy', 'reserved', 'unknown'].filter((state) => counts.has(state)).map((state) => html`<span key=${state} class="state ${state}">${counts.get(state)} ${stateWord(state)}</span>`)}${chips}
    ${idle.length > 0 && html`<span class="quiet"><bdi>idle: ${idle.join('; ')}</bdi></span>`}
  </p>`;
}

// The mean activity of the GPU instances, weighed by their slices; null where none is measured.
export function migActivity({ mig }) {
  const instances = new Map(Object.values(mig).map((each) => [each.gpu_instance_id, each]));
  let sum = null;
  for (const { activity, gpu_slices: slices } of instances.values()) if (activity && activity.graphics_ratio !== null) sum = (sum || 0) + activity.graphics_ratio * slices;
  return sum === null ? null : Math.min(1, sum / MIG_SLICES);
}

function Title({ uuid, gpu }) {
  return html`<header>
    <h3 id="gpu-${gpu.index}"><span class="index">${gpu.index}</span> ${gpu.name}</h3>
    <p class="quiet" title=${uuid}>${gpu.pci_bus_id.replace(/^0000/, '')}</p>
  </header>`;
}

const LastXid = ({ xid, now }) => xid.last_code !== null && html`<span class="quiet">last XID ${xid.last_code} at ${clock(xid.last_unix_s, now)}</span>`;

const share = (value, limit) => (value === null || !limit ? null : value / limit);

function MemoryBar({ parts, lit }) {
  return html`<div class="stack" aria-hidden="true">
    ${parts.parts.map(
      (part) =>
        html`<span
          key=${part.key}
          class=${classes('part', part.owner ? colour(part.label) : part.key === 'reserved' ? 'reserved' : 'rest', isDim(lit, part) && 'dim')}
          style=${{ width: `${((100 * part.bytes) / parts.total).toFixed(2)}%` }}
          title=${part.label}
        ></span>`,
    )}
  </div>`;
}

const CELLS = { free: 'free', held_idle: 'idle', unknown: '?', reserved: 'kept' };

// The MIG devices at their places on the GPU, to scale: in memory slices, or in compute slices if no place is known.
function Mig({ gpu, slots, chosen, now }) {
  const instances = Object.entries(gpu.mig);
  const known = new Map(slots.map((slot) => [slot.uuid, slot]));
  const placed = instances.length > 0 && instances.every(([, mig]) => mig.placement_start_slices !== null);
  const width = placed ? 8 : 7;
  let next = 0;
  return html`<div class="mig">
    <p class="pair"><span>MIG</span><span>${instances.length ? `${instances.length} instances` : 'on, no instance'}</span></p>
    <ul class="slices" style=${{ gridTemplateColumns: `repeat(${width}, 1fr)` }}>
      ${instances.map(([uuid, mig]) => {
        const start = placed ? mig.placement_start_slices : next;
        const size = placed ? mig.placement_size_slices : mig.gpu_slices;
        next = start + size;
        const used = mig.memory_used_bytes === null ? null : mig.memory_used_bytes / mig.memory_total_bytes;
        const slot = known.get(uuid);
        const state = slot ? slot.state : 'unknown';
        const busy = mig.activity ? percent(mig.activity.graphics_ratio) : MISSING;
        const detail = slot ? slotDetail(slot, now) : '';
        return html`<li
          key=${uuid}
          class=${classes(state, !isChosen(chosen, mig.slot) && 'dim')}
          data-mig=${uuid}
          data-state=${state}
          style=${{ gridColumn: `${start + 1} / span ${size}` }}
          title="${mig.slot} (${mig.profile}): ${stateWord(state)} ${detail}; activity ${busy}; ${bytes(mig.memory_used_bytes)} of ${bytes(mig.memory_total_bytes)} used"
        >
          <div class="fill" style=${{ height: `${100 * Math.min(1, used || 0)}%` }}></div>
          <span class="profile">${mig.slot}</span>
          <span class="profile" data-f="cell">${CELLS[state] || busy}</span>
          <span class="hidden">, ${stateWord(state)} ${detail}, activity ${busy}, memory used ${bytes(mig.memory_used_bytes)}</span>
        </li>`;
      })}
    </ul>
  </div>`;
}

function Lost({ uuid, gpu, problem, now, dim }) {
  return html`<article class=${classes('card lost', dim && 'dim')} aria-labelledby="gpu-${gpu.index}" data-uuid=${uuid} data-level=${gpu.health.level} data-state="lost">
    <${Title} uuid=${uuid} gpu=${gpu} />
    <p class="big bad">Lost</p>
    <p>since <span data-f="since_unix_s">${clock(gpu.since_unix_s, now)}</span>, ${duration(now - gpu.since_unix_s)} ago</p>
    ${problem && html`<p><bdi data-f="problem">${problem.sentence}</bdi></p><p><b>What to do:</b> <span data-f="remedy">${problem.remedy}</span></p>`}
    <p class="marks"><${LastXid} xid=${gpu.xid} now=${now} /></p>
  </article>`;
}
