// Firing alerts, and the last events, newest first.
import { html, classes } from '../html.js';
import { Absent, Hidden, isHidden, Section } from '../parts.js';
import { bytes, clock, duration, words } from '../format.js';

const GRAVE = new Set([
  ...['gpu.lost', 'gpu.xid', 'quota.exceeded', 'turn.revoked'],
  ...['lease.trespasser', 'lease.trespasser_paused', 'resource.oom_kill'],
]);

export function Events({ document }) {
  const firing = document.alerts && Object.keys(document.alerts).length > 0;
  return html`<${Section} id="events" title="Events and alerts">
    ${
      firing
        ? html`<div class="columns">
          <div><h3>Alerts</h3><${Alerts} document=${document} /></div>
          <div><h3>Events</h3><${Recent} document=${document} /></div>
        </div>`
        : html`<${Alerts} document=${document} /><${Recent} document=${document} />`
    }
  </${Section}>`;
}

function Alerts({ document }) {
  const { alerts } = document;
  if (!alerts) {
    const source = document.node.sources.alertmanager;
    if (source) return html`<${Absent} document=${document} source="alertmanager" otherwise=${source.detail} />`;
    return html`<p class="quiet">No Alertmanager is configured (alerts.alertmanager_url).</p>`;
  }
  const ids = Object.keys(alerts).sort((a, b) => (alerts[b].since_unix_s || 0) - (alerts[a].since_unix_s || 0));
  if (!ids.length) return html`<p class="quiet">No alert is firing.</p>`;
  return html`<${Hidden} document=${document} section="alerts" /><ul class="list">
    ${ids.map((id) => {
      const alert = alerts[id];
      const level = alert.state === 'active' ? (alert.severity === 'critical' ? 'bad' : 'warn') : '';
      return html`<li key=${id} data-alert=${id}>
        <p>
          <span class=${classes('mark', level)}>${alert.severity || 'alert'}</span> <b><bdi>${alert.name}</bdi></b>
          ${alert.state !== 'active' && html` <span class="quiet">${alert.state}</span>`}
        </p>
        <p><bdi>${alert.summary}</bdi></p>
        <p class="quiet">
          ${alert.since_unix_s !== null && `for ${duration(document.time_unix_s - alert.since_unix_s)}`}
          ${Object.keys(alert.labels).map((label) => html` · ${label} <bdi>${alert.labels[label]}</bdi>`)}
        </p>
      </li>`;
    })}
  </ul>`;
}

// Identities are for programs; an owner that equals the user is not repeated.
const IDENTITIES = /_id$|^uuid$|^pci$/;
const isShown = (name, { details, user }) =>
  details[name] && !IDENTITIES.test(name) && !(name === 'owner' && details[name] === user);
// An amount gets its unit, as everywhere on the page: "36.0 GiB" for bytes 38654705664, "20 s" for seconds 20.4.
const AMOUNTS = { bytes, seconds: duration };
export const detailText = (name, value) =>
  AMOUNTS[name] ? AMOUNTS[name](Number(value)) : `${words(name)} ${short(value)}`;
const short = (text) => (text.length > 40 ? `${text.slice(0, 39)}…` : text);

function Recent({ document }) {
  const { events } = document;
  if (!events)
    return html`<${Absent} document=${document} source="event_log" otherwise="There is no event log on this node." />`;
  const ids = Object.keys(events).sort((a, b) => events[b].time_unix_s - events[a].time_unix_s || (a < b ? 1 : -1));
  if (!ids.length) {
    return isHidden(document, 'events')
      ? html`<${Hidden} document=${document} section="events" />`
      : html`<p class="quiet">There are no events.</p>`;
  }
  return html`<${Hidden} document=${document} section="events" />
    <ol class="list scroll tall" tabindex="0" aria-label="events, newest first">
    ${ids.map((id) => {
      const event = events[id];
      return html`<li key=${id} data-event=${id}>
        <p>
          <time class="quiet">${clock(event.time_unix_s, document.time_unix_s)}</time>
          ${' '}<b class=${classes(GRAVE.has(event.type) && 'bad')}>${event.type}</b>
          ${event.user && html` <bdi>${event.user}</bdi>`}
          ${Object.keys(event.details)
            .filter((name) => isShown(name, event))
            .map((name) => html` <span class="quiet"><bdi>${detailText(name, event.details[name])}</bdi></span>`)}
        </p>
      </li>`;
    })}
  </ol>`;
}
