// One chart of readings over time, drawn by uPlot: its axis is the range asked for, a missing reading is a gap, limits
// are lines, and the pointer shows the time and the values.
import { html } from './html.js';
import { Component, render } from './vendor/preact.mjs';
import { clock } from './format.js';

const HEIGHT = 130;
const BYTE_STEPS = Array.from({ length: 24 }, (_, at) => 2 ** (20 + at));
const [MINUTE, HOUR, DAY] = [60, 3600, 86400];
const TIME_STEPS = [
  ...[1, 2, 5, 10, 15, 30],
  ...[1, 2, 5, 10, 15, 30].map((step) => step * MINUTE),
  ...[1, 2, 3, 6, 12].map((step) => step * HOUR),
  ...[1, 2, 5, 10, 30, 90].map((step) => step * DAY),
];
const DASHES = [[], [6, 3], [2, 2]];
const COLOURS = 8;
const MOST_VALUES = 16;
// The widest tip, and its distance from the pointer.
const TIP_PX = 340;
const NARROWEST_S = 10;

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const two = (value) => String(value).padStart(2, '0');

function timeTick(unix, step) {
  const at = new Date(unix * 1000);
  if (step >= DAY) return `${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  const minute = `${two(at.getHours())}:${two(at.getMinutes())}`;
  return step >= MINUTE ? minute : `${minute}:${two(at.getSeconds())}`;
}

// The colour and the dashes of a line, as classes of its swatch in the legend.
export const lineClasses = (at) => `gpu-${at % COLOURS} dash-${Math.floor(at / COLOURS) % DASHES.length}`;

// A reading without neighbours makes no line, so it is drawn as a point.
function alone(plot, series) {
  const column = plot.data[series];
  const found = [];
  for (let at = 0; at < column.length; at += 1) {
    if (column[at] !== null && (column[at - 1] ?? null) === null && (column[at + 1] ?? null) === null) found.push(at);
  }
  return found;
}

// lines: [{ id, label, at }], `at` for the colour; recent: a Recent; show: a formatter; top: the least upper end of the
// scale; limits: [{ value, label }]; onZoom(from, to), or onZoom(0, 0) to end it
export class Chart extends Component {
  componentDidMount() {
    this.dark = matchMedia('(prefers-color-scheme: dark)');
    this.redraw = () => this.build();
    this.dark.addEventListener('change', this.redraw);
    this.resizes = new ResizeObserver(
      () => this.plot && this.plot.setSize({ width: this.holder.clientWidth, height: HEIGHT }),
    );
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
    if (this.shape() !== this.built) this.build();
    else if (this.visible) this.draw();
  }

  shape() {
    const { lines, limits } = this.props;
    return [...lines.map(({ id }) => id), ...limits.map(({ label }) => label)].join();
  }

  build() {
    if (this.plot) this.plot.destroy();
    const { lines, show, binary } = this.props;
    const axis = {
      stroke: css('--ink-3'),
      grid: { stroke: css('--line'), width: 1 },
      ticks: { show: false },
      font: `12px ${css('--sans')}`,
    };
    this.built = this.shape();
    this.drawn = null;
    this.plot = new window.uPlot(
      {
        width: this.holder.clientWidth,
        height: HEIGHT,
        padding: [8, 18, 0, 0],
        cursor: {
          // Moves in all charts; a zoom is chosen in one, and the page applies it to all.
          sync: { key: 'history', filters: { pub: (event) => event === 'mousemove' || event === 'mouseleave' } },
          points: { size: 5 },
          y: false,
          drag: { setScale: false, dist: 5 },
          dataIdx: (plot, series, at, time) => (this.isNear(at, time) ? at : null),
          bind: { dblclick: () => () => this.props.onZoom(0, 0) },
        },
        legend: { show: false },
        scales: {
          x: { range: () => this.props.recent.bounds() },
          y: { range: (_, low, high) => [0, this.highest(high)] },
        },
        axes: [
          {
            ...axis,
            size: 30,
            space: 56,
            incrs: TIME_STEPS,
            values: (_, ticks, at, space, step) => ticks.map((tick) => timeTick(tick, step)),
          },
          { ...axis, size: 64, values: (_, ticks) => ticks.map(show), ...(binary && { incrs: BYTE_STEPS }) },
        ],
        series: [
          {},
          ...lines.map(({ label, at }) => ({
            label,
            stroke: css(`--gpu-${at % COLOURS}`),
            dash: DASHES[Math.floor(at / COLOURS) % DASHES.length],
            width: 1.5,
            spanGaps: false,
            points: { size: 4, filter: alone },
          })),
        ],
        hooks: {
          draw: [(plot) => this.placeLimits(plot)],
          setCursor: [(plot) => this.showTip(plot)],
          setSelect: [(plot) => this.zoom(plot)],
        },
      },
      this.data(),
      this.holder,
    );
    this.plot.over.addEventListener('mouseenter', () => (this.inside = true));
    this.plot.over.addEventListener('mouseleave', () => {
      this.inside = false;
      render(null, this.tip);
    });
  }

  highest(high) {
    const limit = Math.max(0, ...this.props.limits.map(({ value }) => value));
    return Math.max(this.props.top || 0, 1.06 * (high || 0), 1.06 * limit) || 1;
  }

  data() {
    const { recent, lines } = this.props;
    // Without a reading the axis still covers the range.
    if (!recent.times.length) return [recent.bounds(), ...lines.map(() => [null, null])];
    const none = new Array(recent.times.length).fill(null);
    return [recent.times, ...lines.map(({ id }) => recent.columns.get(id) || none)];
  }

  draw() {
    const { recent } = this.props;
    const version = `${recent.id}.${recent.version}`;
    if (!this.plot || this.drawn === version) return;
    this.drawn = version;
    this.plot.setData(this.data());
  }

  isNear(at, time) {
    const found = this.plot.data[0][at];
    return this.props.recent.times.length > 0 && Math.abs(found - time) <= 1.5 * this.props.recent.step;
  }

  placeLimits(plot) {
    const { limits } = this.props;
    const placeOf = (value) => `${plot.valToPos(value, 'y').toFixed(1)}px`;
    const line = ({ value, label }) =>
      html`<div key=${label} class="limit" data-limit=${value} style=${{ top: placeOf(value) }}><span>${label}</span></div>`;
    this.over =
      this.over && this.over.parentNode === plot.over
        ? this.over
        : plot.over.appendChild(document.createElement('div'));
    render(html`${limits.map(line)}`, this.over);
  }

  // The time and the values under the pointer, next to it.
  showTip(plot) {
    const { left, idx } = plot.cursor;
    if (!this.inside || left < 0 || idx === undefined) return;
    const { lines, show } = this.props;
    const pointed = plot.posToVal(left, 'x');
    const near = idx !== null && this.isNear(idx, pointed);
    const time = near ? plot.data[0][idx] : pointed;
    const values = near
      ? lines
          .map((line, at) => ({ ...line, value: plot.data[at + 1][idx] }))
          .filter(({ value }) => value !== null && value !== undefined)
      : [];
    const shown = values.length > MOST_VALUES ? values.sort((a, b) => b.value - a.value).slice(0, MOST_VALUES) : values;
    // After the pointer where the window has the room, or more of it than before the pointer.
    const before = plot.over.getBoundingClientRect().left + left;
    const after = window.innerWidth - before;
    const side =
      after > TIP_PX || after > before
        ? { left: `${left + 76}px` }
        : { right: `${plot.over.clientWidth - left + 12}px` };
    render(
      html`<div class="tip" style=${side}>
        <p data-f="time" data-unix=${time}><b>${clock(time, Date.now() / 1000)}</b></p>
        <ul class=${shown.length > 6 ? 'two' : ''}>
          ${shown.map(
            ({ id, label, at, value }) =>
              html`<li key=${id} data-value=${id}>
              <span class="swatch stroke ${lineClasses(at)}"></span><span>${label}</span> <b>${show(value)}</b>
            </li>`,
          )}
        </ul>
        ${!shown.length && html`<p>no reading</p>`}
        ${values.length > shown.length && html`<p>and ${values.length - shown.length} lower</p>`}
      </div>`,
      this.tip,
    );
  }

  zoom(plot) {
    const { left, width } = plot.select;
    if (!width) return;
    const from = Math.floor(plot.posToVal(left, 'x'));
    const to = Math.max(Math.ceil(plot.posToVal(left + width, 'x')), from + NARROWEST_S);
    plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    this.props.onZoom(from, to);
  }

  render({ recent, label, note }) {
    return html`<figure class="chart" data-series=${recent.series}>
      <figcaption>${label}</figcaption>
      <div class="drawing" aria-hidden="true">
        <div ref=${(holder) => (this.holder = holder || this.holder)} class="plot"></div>
        <div ref=${(tip) => (this.tip = tip || this.tip)}></div>
      </div>
      ${recent.problem && html`<p class="quiet">${recent.problem}</p>`}
      ${note}
    </figure>`;
  }
}
