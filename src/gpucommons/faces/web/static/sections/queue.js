// GPUs for one command at a time: leases, waiting requests, reservations.
import { html, classes } from '../html.js';
import { Absent, Hidden, Section } from '../parts.js';
import { clock, duration, MISSING, plural } from '../format.js';
import { colour } from '../owners.js';

const WAITING = ['Request', 'Place', 'Expected wait', 'GPUs', 'Why', 'Waits for'];
const LEASES = ['Lease', 'Slots', 'Ends in', 'Memory', 'Held for'];
const RESERVED = ['Reserved for', 'GPUs', 'From', 'Until', 'Slots', 'State'];

export function Queue({ document, lit, narrow }) {
  const { queue, time_unix_s: now } = document;
  if (!queue || queue.off) {
    return html`<${Section} id="queue" title="Queue">
      <${Absent} document=${document} source="leases" otherwise=${queue ? queue.off : 'This agent gives no leases (leases.enabled).'} />
    </${Section}>`;
  }
  const leases = byTime(queue.leases, 'since_unix_s');
  const waiting = byTime(queue.waiting, 'position');
  const reservations = byTime(queue.reservations, 'from_unix_s');
  const note = `${plural(leases.length, 'lease')} · ${waiting.length} waiting · ${plural(reservations.length, 'reservation')}`;
  const trespassed = leases.some(([, one]) => one.trespassers.length);
  const empty = !leases.length && !waiting.length && !reservations.length;
  return html`<${Section} id="queue" title="Queue" note=${note} word="lease">
    <${Hidden} document=${document} section="queue" />
    ${
      empty &&
      html`<p class="quiet">
      No lease, no waiting request, no reservation. To get a GPU for one command: gpucommons run -- COMMAND
    </p>`
    }
    ${!empty && !narrow && html`<${Spans} leases=${leases} waiting=${waiting} reservations=${reservations} lit=${lit} now=${now} />`}
    ${
      waiting.length > 0 &&
      html`<${Table} label="Waiting requests" columns=${WAITING} rows=${waiting.map(([id, one]) => [
        id,
        named(one),
        one.position,
        one.expected_start_unix_s === null ? MISSING : `≈ ${duration(one.expected_start_unix_s - now)}`,
        one.gpus,
        one.sentence,
        duration(now - one.since_unix_s),
      ])} />`
    }
    ${
      leases.length > 0 &&
      html`<details class="more" open=${!narrow || trespassed}><summary>${plural(leases.length, 'lease')}</summary>
    <${Table} label="Leases" columns=${trespassed ? [...LEASES, 'Trespassers'] : LEASES} rows=${leases.map(
      ([id, one]) => [
        id,
        named(one),
        one.slots.join(' ') +
          (one.mps ? ` (MPS${one.sm_percent === null ? '' : ` ${one.sm_percent} %`})` : one.shared ? ' (shared)' : ''),
        one.ends_unix_s === null ? 'no limit' : duration(one.ends_unix_s - now),
        one.memory_text || MISSING,
        duration(now - one.since_unix_s),
        ...(trespassed ? [html`<${Trespassers} trespassers=${one.trespassers} />`] : []),
      ],
    )} /></details>`
    }
    ${
      reservations.length > 0 &&
      html`<${Table} label="Reservations" columns=${RESERVED} rows=${reservations.map(([id, one]) => [
        id,
        named(one),
        one.gpus,
        clock(one.from_unix_s, now),
        clock(one.until_unix_s, now),
        one.slots.join(' ') || MISSING,
        standing(one),
      ])} />`
    }
  </${Section}>`;
}

const byTime = (rows, key) => Object.entries(rows).sort(([, a], [, b]) => a[key] - b[key]);
// Until a reserved slot is free, which user holds it.
const standing = (one) => (one.active ? one.held.map((each) => each.sentence).join('; ') || 'active' : 'to come');
const named = (one) => (one.name ? `${one.user} · ${one.name}` : one.user);

function Table({ label, columns, rows }) {
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${label}>
    <table class="rows stacked">
      <caption class="hidden">${label}</caption>
      <thead><tr>${columns.map((title) => html`<th key=${title} scope="col">${title}</th>`)}</tr></thead>
      <tbody>
        ${rows.map(
          ([id, name, ...cells]) =>
            html`<tr key=${id} data-queue=${id}>
            <th scope="row" class="name"><bdi>${name}</bdi></th>
            ${cells.map((cell, at) => html`<td key=${at} data-label=${columns[at + 1]}>${cell}</td>`)}
          </tr>`,
        )}
      </tbody>
    </table>
  </div>`;
}

// Leases, waiting requests and reservations over time, to scale: the line is now. A request waits until its expected start;
// an end that is not known is the end of the line.
function Spans({ leases, waiting, reservations, lit, now }) {
  const spans = [
    ...leases.map(([id, one]) => ({
      id,
      one,
      label: one.slots.join(' '),
      from: one.since_unix_s,
      until: one.ends_unix_s,
    })),
    ...waiting.map(([id, one]) => ({
      id,
      one,
      label: 'waits',
      kind: 'waits',
      from: one.since_unix_s,
      until: one.expected_start_unix_s,
    })),
    ...reservations.map(([id, one]) => ({
      id,
      one,
      label: 'reserved',
      kind: 'reserved',
      from: one.from_unix_s,
      until: one.until_unix_s,
    })),
  ];
  const from = Math.min(now - 60, ...spans.map((span) => span.from));
  const until = Math.max(now + 120, ...spans.map((span) => span.until || 0));
  const place = (unix) => (100 * (unix - from)) / (until - from);
  return html`<div class="spans" role="img" aria-label="leases, waiting requests and reservations over time">
    ${spans.map(({ id, one, label, kind, ...span }) => {
      const end = span.until === null ? until : span.until;
      return html`<p key=${id} class=${classes(lit && !lit.accounts.has(one.user) && 'dim')} data-span=${id}>
        <span class="label"><bdi>${named(one)}: ${label}</bdi></span>
        <span class="track">
          <span
            class=${classes('span', colour(one.user), kind)}
            style=${{ left: `${place(span.from)}%`, width: `${Math.max(0.5, place(end) - place(span.from))}%` }}
          ></span>
          <span class="line" style=${{ left: `${place(now)}%` }}></span>
        </span>
      </p>`;
    })}
    <p class="axis" aria-hidden="true">
      <span class="label"></span>
      <span class="ends"><span>${clock(from, now)}</span><span>${clock(until, now)}</span></span>
    </p>
  </div>`;
}

const Trespassers = ({ trespassers }) =>
  trespassers.length > 0 &&
  html`<span class="mark bad">
    ${trespassers.map((each) => `${each.user} ${each.process} (${each.pid})${measure(each)}`).join(', ')}
  </span>`;

function measure(trespasser) {
  if (trespasser.paused) return ', paused';
  return trespasser.not_paused_because ? `, not paused: ${trespasser.not_paused_because}` : '';
}
