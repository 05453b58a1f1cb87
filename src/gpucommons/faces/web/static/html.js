// Markup as tagged templates. Values in a template become text, never markup.
import { h } from './vendor/preact.mjs';
import htm from './vendor/htm.mjs';

export const html = htm.bind(h);

export const classes = (...names) => names.filter(Boolean).join(' ');
