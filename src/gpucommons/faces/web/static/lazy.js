// Renders sections in view with each snapshot, and others less often, for search and screen readers. A section that
// comes into view is rendered with the current values.
import { Component, h } from './vendor/preact.mjs';

const NEAR = '100px';
const PATIENCE = 10; // snapshots

// Rendered again only when a value in `on` changes: for parts that snapshots do not change.
export class Still extends Component {
  shouldComponentUpdate(next) {
    return next.on.some((value, at) => value !== this.props.on[at]);
  }

  render({ draw }) {
    return draw();
  }
}

export class Lazy extends Component {
  componentDidMount() {
    this.near = true;
    this.passed = 0;
    this.watcher = new IntersectionObserver(
      (entries) => {
        const near = entries.at(-1).isIntersecting;
        const comes = near && !this.near;
        this.near = near;
        if (comes) this.forceUpdate();
      },
      { rootMargin: NEAR },
    );
    this.watcher.observe(this.holder);
  }

  componentWillUnmount() {
    this.watcher.disconnect();
  }

  // `turn` counts the viewer's actions: each renders all sections at once.
  shouldComponentUpdate(next) {
    this.passed = this.near || next.turn !== this.props.turn ? 0 : this.passed + 1;
    return this.passed % PATIENCE === 0;
  }

  render({ tag, kind, draw }) {
    return h(tag, { class: kind, ref: (holder) => (this.holder = holder || this.holder) }, draw());
  }
}
