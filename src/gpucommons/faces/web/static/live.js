// The connection to the agent: one event stream while the page is visible, none while it is hidden. It reports a loss
// and reconnects. The agent sends a heartbeat every 15 s, so a longer silence is a loss as well.
import { apply } from './delta.js';

const SILENCE_MS = 40000;
const RETRY_MS = [1000, 2000, 4000, 8000];

// A name may contain marks that change the direction of text and imitate another name: they are escaped.
const TURNS = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
const parse = (text) =>
  JSON.parse(text.replace(TURNS, (mark) => `\\\\u${mark.charCodeAt(0).toString(16).padStart(4, '0')}`));

export class Live {
  // onDocument(document, isWhole); onLink('live' | 'lost' | 'paused', since)
  constructor(url, onDocument, onLink) {
    this.url = url;
    this.onDocument = onDocument;
    this.onLink = onLink;
    this.document = null;
    this.source = null;
    this.failures = 0;
    this.timer = 0;
    document.addEventListener('visibilitychange', () => (document.hidden ? this.pause() : this.open()));
    window.addEventListener('online', () => this.open());
    if (!document.hidden) this.open();
  }

  open() {
    this.drop();
    const source = (this.source = new EventSource(this.url));
    source.addEventListener('snapshot', (event) => this.received(parse(event.data), true));
    source.addEventListener('delta', (event) => this.received(apply(this.document, parse(event.data)), false));
    source.addEventListener('beat', () => this.heard());
    source.onerror = () => this.lost();
    this.expect();
  }

  received(document, isWhole) {
    this.document = document;
    this.heard();
    this.onDocument(document, isWhole);
  }

  heard() {
    this.failures = 0;
    this.expect();
    this.onLink('live');
  }

  expect() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.lost(), SILENCE_MS);
  }

  lost() {
    this.drop();
    this.onLink('lost');
    if (document.hidden) return;
    const wait = RETRY_MS[Math.min(this.failures, RETRY_MS.length - 1)];
    this.failures += 1;
    this.timer = setTimeout(() => this.open(), wait);
  }

  pause() {
    this.drop();
    this.onLink('paused');
  }

  drop() {
    clearTimeout(this.timer);
    if (this.source) this.source.close();
    this.source = null;
  }
}
