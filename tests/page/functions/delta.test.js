import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import test from 'node:test';
import { apply } from './static/delta.js';

// [before, after, delta] of documents, with the deltas as the agent makes them.
const pairs = JSON.parse(readFileSync(new URL('deltas.json', import.meta.url), 'utf8'));

test('deltas are applied as the agent means them', () => {
  assert.ok(pairs.length > 100);
  for (const [before, after, changes] of pairs) assert.deepEqual(apply(before, changes), after);
});
