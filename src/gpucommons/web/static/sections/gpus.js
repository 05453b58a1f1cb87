// A card for each GPU: utilisation, memory by owner, power, temperature and health. A lost GPU keeps its card.
import { html, classes } from '../html.js';
import { Lazy } from '../lazy.js';
import { Absent, Bar, Section, Spark, Swatch } from '../parts.js';
import { bytes, celsius, clock, count, duration, megahertz, MISSING, percent, watts, words } from '../format.js';
import { colour, ownerLabel } from '../owners.js';

const SPARK_POINTS = 60; // at least: a line of a few seconds does not fill the whole width
const MARKS = { warning: 'warn', critical: 'bad' };

export function Gpus({ document, recent, turn, lit, onFocus }) {
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
  const cardOf = (uuid) => {
    const gpu = gpus.by_uuid[uuid];
    if (!gpu.up) return html`<${Lost} uuid=${uuid} gpu=${gpu} now=${document.time_unix_s} />`;
    const values = (recent && recent.columns.get(uuid)) || [];
    const parts = memoryParts(uuid, gpu, who);
    return html`<${Card} uuid=${uuid} gpu=${gpu} parts=${parts} values=${values} now=${document.time_unix_s} lit=${lit} onFocus=${onFocus} />`;
  };
  return html`<${Section} id="gpus" title="GPUs" note=${note}>
    <ul class="cards">
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

function Card({ uuid, gpu, parts, values, now, lit, onFocus }) {
  const { level, reasons } = gpu.health;
  const hot = 'hot' in reasons;
  const dim = lit && !parts.parts.some((part) => part.owner && lit.owners.has(part.key));
  return html`<article class=${classes('card', level !== 'ok' && 'unhealthy', dim && 'dim')} aria-labelledby="gpu-${gpu.index}" data-uuid=${uuid} data-level=${level}>
    <${Title} uuid=${uuid} gpu=${gpu} />
    <div class="busy">
      <p class="big" title=${gpu.mig_enabled ? 'the driver does not measure it in MIG mode' : undefined}><span data-f="utilization_ratio">${percent(gpu.utilization_ratio)}</span></p>
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
                <${Swatch} name=${part.owner ? colour(part.key) : 'rest'} />
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
    ${gpu.mig_enabled && html`<${Mig} gpu=${gpu} />`}
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
      ${gpu.throttle_reasons === null && html`<span class="quiet">throttle reasons ${MISSING}</span>`}
      <${LastXid} xid=${gpu.xid} now=${now} />
    </p>
  </article>`;
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
          class=${classes('part', part.owner ? colour(part.key) : part.key === 'reserved' ? 'reserved' : 'rest', isDim(lit, part) && 'dim')}
          style=${{ width: `${((100 * part.bytes) / parts.total).toFixed(2)}%` }}
          title=${part.label}
        ></span>`,
    )}
  </div>`;
}

// The MIG devices at their places on the GPU, to scale: in memory slices, or in compute slices if no place is known.
function Mig({ gpu }) {
  const instances = Object.entries(gpu.mig);
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
        return html`<li
          key=${uuid}
          data-mig=${uuid}
          style=${{ gridColumn: `${start + 1} / span ${size}` }}
          title="${mig.slot} (${mig.profile}): ${bytes(mig.memory_used_bytes)} of ${bytes(mig.memory_total_bytes)} used"
        >
          <div class="fill" style=${{ height: `${100 * Math.min(1, used || 0)}%` }}></div>
          <span class="profile">${mig.slot}</span>
          <span class="hidden">, memory used ${bytes(mig.memory_used_bytes)}</span>
        </li>`;
      })}
    </ul>
  </div>`;
}

function Lost({ uuid, gpu, now }) {
  return html`<article class="card lost" aria-labelledby="gpu-${gpu.index}" data-uuid=${uuid} data-level=${gpu.health.level}>
    <${Title} uuid=${uuid} gpu=${gpu} />
    <p class="big bad">Lost</p>
    <p>since <span data-f="since_unix_s">${clock(gpu.since_unix_s, now)}</span>, ${duration(now - gpu.since_unix_s)} ago</p>
    ${Object.keys(gpu.health.reasons).map((reason) => html`<p key=${reason} data-reason=${reason}>${gpu.health.reasons[reason].sentence}</p>`)}
    <p class="marks"><${LastXid} xid=${gpu.xid} now=${now} /></p>
  </article>`;
}
