import assert from 'node:assert/strict';
import test from 'node:test';
import { detailText } from './static/sections/events.js';

test('amounts of an event have a unit, other details their name', () => {
  assert.equal(detailText('bytes', '40735080448'), '37.9\u202fGiB');
  assert.equal(detailText('seconds', '20.5'), '21\u202fs');
  assert.equal(detailText('workload', 'train.py'), 'workload train.py');
  assert.equal(detailText('program', 'x'.repeat(60)), `program ${'x'.repeat(39)}…`);
});
