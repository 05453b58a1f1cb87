// One chart of readings over time, drawn by uPlot, with a table of the same values next to it.
import { html, classes } from './html.js';
import { Component } from './vendor/preact.mjs';

const HEIGHT = 170;
const BYTE_STEPS = Array.from({ length: 24 }, (_, at) => 2 ** (20 + at));
const DASHES = [[], [6, 3], [2, 2]];
const COLOURS = 8;

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const two = (value) => String(value).padStart(2, '0');

function timeTick(unix, step) {
  const at = new Date(unix * 1000);
  if (step >= 86400) return `${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  const minute = `${two(at.getHours())}:${two(at.getMinutes())}`;
  return step >= 60 ? minute : `${minute}:${two(at.getSeconds())}`;
}

function summary(column) {
  let low = Infinity;
  let high = -Infinity;
  let sum = 0;
  let known = 0;
  for (const value of column) {
    if (value === null) continue;
    known += 1;
    sum += value;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return known ? { low, high, mean: sum / known } : { low: null, high: null, mean: null };
}

// subjects: [[id, label]]; recent: { times, columns, version }; show: a formatter; top: the least upper end of the scale
export class Chart extends Component {
  componentDidMount() {
    this.dark = matchMedia('(prefers-color-scheme: dark)');
    this.redraw = () => this.build();
    this.dark.addEventListener('change', this.redraw);
    this.resizes = new ResizeObserver(() => this.plot && this.plot.setSize({ width: this.holder.clientWidth, height: HEIGHT }));
    this.resizes.observe(this.holder);
    this.sees = new IntersectionObserver(([entry]) => {
      this.visible = entry.isIntersecting;
      if (this.visible) this.draw();
    });
    this.sees.observe(this.holder);
    this.build();
  }

  componentWillUnmount() {
    this.dark.removeEventListener('change', this.redraw);
    this.resizes.disconnect();
    this.sees.disconnect();
    if (this.plot) this.plot.destroy();
  }

  componentDidUpdate() {
    const shape = this.shape();
    if (shape !== this.built) this.build();
    else if (this.visible) this.draw();
  }

  shape() {
    return this.props.subjects.map(([id]) => id).join() + this.props.recent.range;
  }

  build() {
    if (this.plot) this.plot.destroy();
    const { subjects, show, top, binary } = this.props;
    const axis = { stroke: css('--ink-3'), grid: { stroke: css('--line'), width: 1 }, ticks: { show: false }, font: `12px ${css('--sans')}` };
    this.built = this.shape();
    this.plot = new window.uPlot(
      {
        width: this.holder.clientWidth,
        height: HEIGHT,
        cursor: { sync: { key: 'history' }, points: { size: 5 } },
        legend: { show: false },
        scales: { y: { range: (_, low, high) => [0, Math.max(top || 0, high * 1.06 || 0) || 1] } },
        axes: [
          { ...axis, size: 30, values: (_, ticks, at, space, step) => ticks.map((tick) => timeTick(tick, step)) },
          { ...axis, size: 64, values: (_, ticks) => ticks.map(show), ...(binary && { incrs: BYTE_STEPS }) },
        ],
        series: [
          {},
          ...subjects.map(([, name], at) => ({
            label: name,
            stroke: css(`--gpu-${at % COLOURS}`),
            dash: DASHES[Math.floor(at / COLOURS) % DASHES.length],
            width: 1.5,
            spanGaps: false,
            points: { show: false },
          })),
        ],
      },
      this.data(),
      this.holder,
    );
  }

  data() {
    const { recent, subjects } = this.props;
    const none = new Array(recent.times.length).fill(null);
    return [recent.times, ...subjects.map(([id]) => recent.columns.get(id) || none)];
  }

  draw() {
    const { recent } = this.props;
    if (this.plot && (this.collected !== recent || this.collectedVersion !== recent.version)) {
      this.collected = recent;
      this.collectedVersion = recent.version;
      this.plot.setData(this.data());
    }
  }

  // Over the whole range: computed again only after each step; current values come with each snapshot.
  summaries() {
    const { recent, subjects } = this.props;
    if (this.summed !== recent || this.summedVersion !== recent.version) {
      this.found = subjects.map(([id]) => summary(recent.columns.get(id) || []));
      this.summed = recent;
      this.summedVersion = recent.version;
    }
    return this.found;
  }

  render({ recent, subjects, show, label, now }) {
    const found = this.summaries();
    return html`<figure class="chart">
      <figcaption>${label}</figcaption>
      <div ref=${(holder) => (this.holder = holder)} class="plot" aria-hidden="true"></div>
      ${recent.problem && html`<p class="quiet">${recent.problem}</p>`}
      <div class="scroll" tabindex="0" role="region" aria-label="${label}, summary">
        <table class="small">
          <caption class="hidden">${label}: now, least, mean and most of the range shown</caption>
          <thead><tr><th scope="col"><span class="hidden">of</span></th><th scope="col">now</th><th scope="col">least</th><th scope="col">mean</th><th scope="col">most</th></tr></thead>
          <tbody>
            ${subjects.map(([id, name], at) => {
              const { low, mean, high } = found[at] || {};
              return html`<tr key=${id} data-subject=${id}>
                <th scope="row"><span class=${classes('swatch', 'stroke', `gpu-${at % COLOURS}`, at >= COLOURS && 'dashed')} aria-hidden="true"></span>${name}</th>
                <td data-f="now">${show(now[id] ?? null)}</td><td>${show(low)}</td><td>${show(mean)}</td><td>${show(high)}</td>
              </tr>`;
            })}
          </tbody>
        </table>
      </div>
    </figure>`;
  }
}
