// Small components that several sections use.
import { html, classes } from './html.js';
import { colour } from './owners.js';

// A bar from 0 to 1, hidden from screen readers since the number is next to it. `level` is '', 'warn' or 'bad'.
export function Bar({ ratio, level }) {
  const width = Math.min(Math.max(ratio || 0, 0), 1) * 100;
  return html`<div class=${classes('meter', level)} aria-hidden="true">
    <div class="fill" style=${{ width: `${width.toFixed(1)}%` }}></div>
  </div>`;
}

// Values of the last minutes as a line, 0 to 1, with gaps for missing readings.
export function Spark({ values, length, label }) {
  const lines = [];
  let line = '';
  const offset = length - values.length;
  for (let at = 0; at < values.length; at += 1) {
    const value = values[at];
    if (value === null || value === undefined) {
      if (line) lines.push(line);
      line = '';
    } else {
      line += `${at + offset},${Math.round(40 - 38 * Math.min(Math.max(value, 0), 1))} `;
    }
  }
  if (line) lines.push(line);
  return html`<svg class="spark" viewBox="0 0 ${length} 41" preserveAspectRatio="none" role="img" aria-label=${label}>
    ${lines.map((points) => html`<polyline points=${points} />`)}
  </svg>`;
}

export function Choice({ label, options, value, onPick }) {
  return html`<div class="choice" role="group" aria-label=${label}>
    ${options.map(
      ([key, text]) =>
        html`<button type="button" key=${key} aria-pressed=${key === value ? 'true' : 'false'} onClick=${() => onPick(key)}>
          ${text}
        </button>`,
    )}
  </div>`;
}

// `word` is explained in the glossary.
export function Section({ id, title, note, word, tools, children }) {
  return html`<section id=${id} aria-labelledby="${id}-title">
    <div class="head">
      <h2 id="${id}-title" tabindex="-1">${title}</h2>
      ${note && html`<p class="note">${note}</p>`}
      ${word && html`<a class="word" href="/glossary#${word}" aria-label="glossary: ${word}">glossary</a>`}
      ${tools && html`<div class="tools">${tools}</div>`}
    </div>
    ${children}
  </section>`;
}

// The reason why a section is empty, from its source.
export function Absent({ document, source, otherwise }) {
  const state = document.node.sources[source];
  const why = state && state.state !== 'fresh' ? [state.detail, state.remedy].filter(Boolean).join('; ') : '';
  return html`<p class="absent"><strong>Not on this node.</strong> ${why || otherwise}</p>`;
}

export const isHidden = (document, section) => Boolean(document.hidden && document.hidden.sections.includes(section));

// What is hidden from this viewer is shown as hidden: an empty list would read as "there is none".
export function Hidden({ document, section }) {
  return isHidden(document, section) && html`<p class="quiet" data-hidden=${section}>${document.hidden.sentence}</p>`;
}

const MOST_SWATCHES = 3;

// The colours of several owners, such as those of one account. A function and no component: long tables have many.
export const swatches = (names) =>
  names
    .slice(0, MOST_SWATCHES)
    .map((name) => html`<span key=${name} class="swatch ${colour(name)}" aria-hidden="true"></span>`);

export function Swatch({ name }) {
  return html`<span class=${classes('swatch', name)} aria-hidden="true"></span>`;
}
