// The node in one sentence, and its problems, gravest first. The sentence is the agent's; each part links to its rows.
import { html, classes } from '../html.js';
import { duration } from '../format.js';

const TONES = { bad: 'bad', warning: 'warn', good: 'good', plain: '' };
const LEVELS = { lost: 'bad', critical: 'bad', warning: 'warn' };
const SHOWN = 4;

export function Now({ document, chosen, onChoose }) {
  const { summary } = document;
  return html`<section id="now" aria-labelledby="now-title">
    <h2 id="now-title" class="hidden" tabindex="-1">Now</h2>
    <ul class="sentence" aria-label="the node now">
      ${summary.parts.map(
        (part) => html`<li key=${part.name} data-part-of-sentence=${part.name}>
          <a
            class=${classes(TONES[part.tone], chosen && chosen.name === part.name && 'chosen')}
            href=${target(document, part)}
            onClick=${() => onChoose(part.slots.length ? part.name : '')}
          ><b>${part.text}</b>${part.detail && html` <span class="detail">${part.detail}</span>`}</a>
        </li>`,
      )}
    </ul>
    <${Problems} document=${document} />
  </section>`;
}

function target(document, part) {
  if (part.name === 'problems') return '#problems';
  if (part.name === 'waiting') return document.queue && Object.keys(document.queue.waiting).length ? '#queue' : '#turns';
  if (part.name === 'parked') return '#turns';
  return part.slots.length ? `#gpu-${part.slots[0].split('.')[0]}` : '#gpus';
}

function Problems({ document }) {
  const { problems } = document;
  const keys = Object.keys(problems).sort((a, b) => problems[a].rank - problems[b].rank);
  const row = (key) => html`<${Problem} key=${key} id=${key} problem=${problems[key]} now=${document.time_unix_s} />`;
  if (!keys.length) return html`<p id="problems" class="quiet">No problem.</p>`;
  return html`<ol id="problems" class="problems" aria-label="problems, gravest first">${keys.slice(0, SHOWN).map(row)}</ol>
    ${keys.length > SHOWN &&
    html`<details class="more"><summary>${keys.length - SHOWN} more</summary><ol class="problems">${keys.slice(SHOWN).map(row)}</ol></details>`}`;
}

function Problem({ id, problem, now }) {
  return html`<li class=${LEVELS[problem.level] || ''} data-problem=${id}>
    <span class="mark ${LEVELS[problem.level] || ''}">${problem.level}</span>
    <p>
      ${problem.gpu_index === null ? html`<b data-f="sentence"><bdi>${problem.sentence}</bdi></b>` : html`<a href="#gpu-${problem.gpu_index}"><b data-f="sentence"><bdi>${problem.sentence}</bdi></b></a>`}
      ${problem.since_unix_s !== null && html` <span class="quiet">for ${duration(now - problem.since_unix_s)}</span>`}
      ${' '}<span data-f="remedy">${problem.remedy}</span>
    </p>
  </li>`;
}
