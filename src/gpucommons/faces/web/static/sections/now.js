// The node in one strip, and its problems, gravest first: what is lost, free, held idle and by which user, what waits for
// what and since when. The words are the agent's; each part leads to its rows.
import { html, classes } from '../html.js';
import { duration, plural } from '../format.js';

const TONES = { bad: 'bad', warning: 'warn', good: 'good', plain: '' };
const LEVELS = { lost: 'bad', critical: 'bad', warning: 'warn' };
const SHOWN = 4;
const LINES = 4;

export function Now({ document, chosen, onChoose }) {
  return html`<section id="now" aria-labelledby="now-title">
    <h2 id="now-title" class="hidden" tabindex="-1">Now</h2>
    <${Strip}
      parts=${document.summary.parts}
      chosen=${chosen && chosen.name}
      label="the node now"
      target=${(part) => target(document, part)}
      onChoose=${(part) => onChoose(part.slots.length ? part.name : '')}
    />
    <${Problems} document=${document} />
  </section>`;
}

// `target` gives the address of a part; `onChoose` gets the part that was clicked, and the event.
export function Strip({ parts, chosen, label, target, onChoose }) {
  return html`<ul class="sentence" aria-label=${label}>
    ${parts.map((part) => {
      const { name, lines = [] } = part;
      const shown = lines.length === LINES + 1 ? lines : lines.slice(0, LINES);
      const more = lines.length - shown.length;
      return html`<li key=${name} class=${classes(lines.length > 0 && 'long')} data-part-of-sentence=${name}>
        <a
          class=${classes(TONES[part.tone], chosen === name && 'chosen')}
          href=${target(part)}
          onClick=${(event) => onChoose(part, event)}
        >
          <b>${part.text}</b>
          ${part.detail && !lines.length && html` <span class="detail"><bdi>${part.detail}</bdi></span>`}
          ${
            lines.length > 0 &&
            html`<span class="lines">
            ${shown.map((line) => html`<span key=${line} class="detail"><bdi>${line}</bdi></span>`)}
            ${more > 0 && html`<span class="detail">and ${more} more</span>`}
          </span>`
          }
        </a>
      </li>`;
    })}
  </ul>`;
}

function target(document, part) {
  if (part.name === 'problems') return '#problems';
  if (part.name === 'waiting')
    return document.queue && Object.keys(document.queue.waiting).length ? '#queue' : '#turns';
  if (part.name === 'parked') return '#turns';
  return part.slots.length ? `#gpu-${part.slots[0].split('.')[0]}` : '#gpus';
}

// A user who waits, or a GPU that is held idle, is not a problem of the node, but "No problem" next to one would be wrong.
export const isCalm = ({ summary }) =>
  !summary.parts.some((part) => part.name === 'waiting' || ['bad', 'warning'].includes(part.tone));

function Problems({ document }) {
  const { problems } = document;
  const sorted = Object.keys(problems).sort((a, b) => problems[a].rank - problems[b].rank);
  // The strip names the idle holders already.
  const keys = sorted.filter((key) => problems[key].kind !== 'held_idle');
  const first = keys.slice(0, SHOWN);
  const more = sorted.filter((key) => !first.includes(key));
  const row = (key) => html`<${Problem} key=${key} id=${key} problem=${problems[key]} now=${document.time_unix_s} />`;
  if (!sorted.length) return isCalm(document) && html`<p id="problems" class="quiet">No problem.</p>`;
  return html`<ol id="problems" class="problems" aria-label="problems, gravest first">${first.map(row)}</ol>
    ${
      more.length > 0 &&
      html`<details class="more">
      <summary>${first.length ? `${more.length} more` : plural(more.length, 'warning')}</summary>
      <ol class="problems">${more.map(row)}</ol>
    </details>`
    }`;
}

function Problem({ id, problem, now }) {
  const sentence = html`<b data-f="sentence"><bdi>${problem.sentence}</bdi></b>`;
  return html`<li class=${LEVELS[problem.level] || ''} data-problem=${id}>
    <span class="mark ${LEVELS[problem.level] || ''}">${problem.level}</span>
    <p>
      ${problem.gpu_index === null ? sentence : html`<a href="#gpu-${problem.gpu_index}">${sentence}</a>`}
      ${problem.since_unix_s !== null && html` <span class="quiet">for ${duration(now - problem.since_unix_s)}</span>`}
      ${' '}<span data-f="remedy">${problem.remedy}</span>
    </p>
  </li>`;
}
