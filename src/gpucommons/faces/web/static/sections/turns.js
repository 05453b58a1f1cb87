// Turns on each shared GPU: past turns, the queue, why and how long clients wait, quotas and debts. GPUs on which no client
// waits are folded into one line.
import { html, classes } from '../html.js';
import { Absent, Hidden, Section, Swatch } from '../parts.js';
import { bytes, count, duration, MISSING, plural } from '../format.js';
import { clientOwners, colour } from '../owners.js';

const OFF = 'The sharing scheduler does not run here; start it with: gpucommons up --share';
const LONGEST_S = 600;
const SHORTEST_S = 60;

export function Turns({ document, lit, narrow, onFocus }) {
  const { turns } = document;
  if (!turns) {
    return html`<${Section} id="turns" title="Turns">
      <${Absent} document=${document} source="scheduler" otherwise=${OFF} />
    </${Section}>`;
  }
  const gpus = Object.keys(turns.gpus)
    .filter((uuid) => clientsOf(turns, uuid).length || Object.keys(turns.gpus[uuid].timeline).length)
    .sort((a, b) => natural(nameOf(turns, a), nameOf(turns, b)));
  const ownerOf = clientOwners(document);
  const owners = document.who ? document.who.owners : {};
  const shared = (uuid) =>
    html`<${Shared}
      key=${uuid}
      uuid=${uuid}
      turns=${turns}
      now=${document.time_unix_s}
      ownerOf=${ownerOf}
      lit=${lit}
      owners=${owners}
      narrow=${narrow}
      onFocus=${onFocus}
    />`;
  const contended = gpus.filter((uuid) => isContended(turns, uuid));
  const calm = gpus.filter((uuid) => !isContended(turns, uuid));
  const note = `${turns.on ? 'on' : 'off'} · ${turns.mode} · ${Object.keys(turns.clients).length} clients`;
  return html`<${Section} id="turns" title="Turns" note=${note} word="turn">
    <${Hidden} document=${document} section="turns" />
    ${!gpus.length && html`<p class="quiet">No client is connected.</p>`}
    ${contended.length > 0 && html`<div class="shared">${contended.map(shared)}</div>`}
    ${
      calm.length > 0 &&
      html`<details class="more" data-calm=${calm.length}>
      <summary>${plural(calm.length, 'GPU')} without contention</summary>
      <div class="shared">${calm.map(shared)}</div>
    </details>`
    }
    <${Parked} parking=${turns.parking} now=${document.time_unix_s} />
    <${Arrivals} parking=${turns.parking} />
    <${LeftAlone} programs=${turns.left_alone} />
  </${Section}>`;
}

// Turns alternate within seconds: a GPU on which no client waits at this moment is still shared in turns.
const isContended = (turns, uuid) => {
  const { way, waiting, overloaded } = turns.gpus[uuid];
  return overloaded || waiting.length > 0 || ['turns', 'measuring'].includes(way);
};

function Parked({ parking, now }) {
  const programs = parking ? Object.entries(parking.programs) : [];
  if (!programs.length) return null;
  return html`<h3>Parked</h3>
    <ul class="quiet parked">
      ${programs.map(
        ([key, one]) =>
          html`<li key=${key} data-parked=${key}>
          <bdi>${one.name}</bdi>: <b data-f="stage">${one.stage}</b> for ${duration(Math.max(0, now - one.since_unix_s))},
          ${' '}<span data-f="host_bytes">${bytes(one.host_bytes)}</span> in host memory
          ${one.waits ? html`; not back yet: ${one.waits}` : one.sentence ? html`; ${one.sentence}` : ''}
        </li>`,
      )}
    </ul>`;
}

function Arrivals({ parking }) {
  const arrivals = parking ? Object.entries(parking.arrivals) : [];
  if (!arrivals.length) return null;
  return html`<h3>Waited for room</h3>
    <ul class="quiet arrivals">
      ${arrivals.map(([key, one]) => html`<li key=${key} data-arrival=${key}><bdi>${one.name}</bdi> ${one.sentence}</li>`)}
    </ul>`;
}

function LeftAlone({ programs }) {
  if (!programs.length) return null;
  return html`<h3>Left alone</h3>
    <ul class="quiet left-alone">
      ${programs.map((one, at) => html`<li key=${at}><bdi>${one.name}</bdi>: ${one.sentence}</li>`)}
    </ul>`;
}

const natural = new Intl.Collator(undefined, { numeric: true }).compare;
const nameOf = (turns, uuid) => turns.gpus[uuid].slot || uuid;
const clientsOf = (turns, uuid) => Object.keys(turns.clients).filter((id) => turns.clients[id].gpu_uuid === uuid);
// A pod without its namespace. A name by owner and command stays whole.
const shortOf = (name) => (name.includes(' · ') ? name : name.slice(name.indexOf('/') + 1));

function Shared({ uuid, turns, now, ownerOf, lit, owners, narrow, onFocus }) {
  const gpu = turns.gpus[uuid];
  const clients = ordered(turns, uuid);
  const withQuota = clients.some((id) => hasQuota(turns.clients[id]));
  return html`<article class="turns" data-uuid=${uuid}>
    <header>
      <h3>GPU ${nameOf(turns, uuid)}</h3>
      <p class="note">
        <span data-f="way">${gpu.way_sentence}</span>
        ${gpu.gain_sentence && html` · <span data-f="gain">${gpu.gain_sentence}</span>`}
        ${gpu.quantum_left_s !== null && html` · turn ends in <span data-f="quantum_left_s">${duration(gpu.quantum_left_s)}</span>`}
        ${' · '}<span data-f="memory">${gpu.memory_sentence}</span>
        ${gpu.overloaded && html` · <span class="mark bad">overloaded</span>`}
      </p>
    </header>
    <${Timeline} gpu=${gpu} clients=${turns.clients} now=${now} ownerOf=${ownerOf} lit=${lit} />
    <details class="more bare" open=${!narrow}>
    <summary>${plural(clients.length, 'client')}, ${gpu.waiting.length} waiting</summary>
    <div class="scroll" tabindex="0" role="region" aria-label="queue of GPU ${nameOf(turns, uuid)}">
      <table class="rows queue stacked">
        <caption class="hidden">Clients of GPU ${nameOf(turns, uuid)}: running first, then the queue in order</caption>
        <thead>
          <tr>
            <th scope="col">Client</th>
            <th scope="col">Now</th>
            <th scope="col" class="number">Expected wait</th>
            <th scope="col" class="number">Memory</th>
            ${withQuota && html`<th scope="col" class="number">Core quota</th>`}
            <th scope="col" class="number">Turns</th>
          </tr>
        </thead>
        <tbody>
          ${clients.map(
            (id) =>
              html`<${Client}
                key=${id}
                id=${id}
                client=${turns.clients[id]}
                owner=${ownerOf(turns.clients[id])}
                dim=${lit && !lit.clients.has(id)}
                owners=${owners}
                withQuota=${withQuota}
                onFocus=${onFocus}
              />`,
          )}
        </tbody>
      </table>
    </div></details>
  </article>`;
}

// Running clients, then the queue in its order, then the others.
function ordered(turns, uuid) {
  const gpu = turns.gpus[uuid];
  const first = [...gpu.running, ...gpu.waiting].filter((id) => turns.clients[id]);
  return [...first, ...clientsOf(turns, uuid).filter((id) => !first.includes(id))];
}

const hasQuota = (client) => client.core_quota_percent < 100 || client.throttled;

function Client({ id, client, owner, dim, owners, withQuota, onFocus }) {
  const name = html`<bdi>${shortOf(client.name)}</bdi>`;
  const focus = () => onFocus({ by: 'owner', id: owner.key, label: owner.name });
  return html`<tr class=${classes(dim && 'dim')} data-client=${id}>
    <th scope="row" class="name">
      <div>
        <${Swatch} name=${colour(owner.name)} />
        ${owners[owner.key] ? html`<button type="button" onClick=${focus}>${name}</button>` : name}
      </div>
    </th>
    <td data-label="Now" data-f="standing"><${Standing} client=${client} /></td>
    <td class="number" data-label="Expected wait" data-f="expected_s">${client.wait ? expected(client.wait) : ''}</td>
    <td class="number" data-label="Memory" data-f="memory_bytes">
      ${bytes(client.memory_bytes)}${client.memory_quota_bytes ? ` / ${bytes(client.memory_quota_bytes)}` : ''}
    </td>
    ${
      withQuota &&
      html`<td class=${classes('number', !hasQuota(client) && 'usual')} data-label="Core quota" data-f="quota">
      ${client.core_quota_percent} %
    </td>`
    }
    <td class="number" data-label="Turns" data-f="turns_total">${count(client.turns_total)}</td>
  </tr>`;
}

const expected = ({ expected_s: after }) => (after === null ? MISSING : `≈ ${duration(after)}`);

const Standing = ({ client: { revoked, standing_sentence: sentence } }) =>
  revoked ? html`<span class="mark bad">${sentence}</span>` : sentence;

// One lane per client, with time to scale: the lanes stay in place and the view moves.
function Timeline({ gpu, clients, now, ownerOf, lit }) {
  const shown = Object.entries(gpu.timeline).filter(([, turn]) => (turn.end_unix_s ?? now) > now - LONGEST_S);
  if (!shown.length) return html`<p class="quiet">No client has run in the last ${duration(LONGEST_S)}.</p>`;
  const colourOf = (turn) => colour(ownerOf(clients[turn.client] || turn).name);
  const lanes = [...new Set(shown.map(([, turn]) => turn.client))].sort();
  const labels = new Map(shown.map(([, turn]) => [turn.client, turn.label]));
  const oldest = Math.min(...shown.map(([, turn]) => turn.start_unix_s));
  const span = Math.min(LONGEST_S, Math.max(SHORTEST_S, now - oldest));
  const origin = Math.floor(now / LONGEST_S) * LONGEST_S - LONGEST_S;
  return html`<div class="timeline" role="img" aria-label=${spoken(lanes, labels, shown, now)}>
    <div class="lanes" aria-hidden="true">
      ${lanes.map(
        (id) =>
          html`<p key=${id} class=${classes(lit && !lit.clients.has(id) && 'dim')}><bdi>${shortOf(labels.get(id))}</bdi></p>`,
      )}
    </div>
    <svg
      viewBox="${now - span - origin} 0 ${span} ${10 * lanes.length}"
      preserveAspectRatio="none"
      style=${{ height: `${1.4 * lanes.length}rem` }}
    >
      ${shown.map(
        ([key, turn]) =>
          html`<rect
            key=${key}
            class=${classes('turn', colourOf(turn), lit && !lit.clients.has(turn.client) && 'dim')}
            x=${(turn.start_unix_s - origin).toFixed(1)}
            y=${10 * lanes.indexOf(turn.client) + 2}
            width=${Math.max(span / 800, (turn.end_unix_s ?? now) - turn.start_unix_s).toFixed(1)}
            height="6"
          />`,
      )}
    </svg>
    <p class="axis" aria-hidden="true"><span>${duration(span)} ago</span><span>now</span></p>
  </div>`;
}

function spoken(lanes, labels, shown, now) {
  const ran = lanes.map((id) => {
    const total = shown
      .filter(([, turn]) => turn.client === id)
      .reduce((sum, [, turn]) => sum + (turn.end_unix_s ?? now) - Math.max(turn.start_unix_s, now - LONGEST_S), 0);
    return `${labels.get(id)} ran ${duration(total)}`;
  });
  return `in the last ten minutes: ${ran.join(', ')}`;
}
