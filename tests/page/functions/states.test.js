import assert from 'node:assert/strict';
import test from 'node:test';
import { colour, ownerLabel, ownerNames } from './static/owners.js';
import { isChosen, queuedByGpu, slotsByGpu } from './static/states.js';

test('slots and queues are found by GPU', () => {
  const slots = {
    a: { gpu_uuid: 'G', name: '0.0' },
    b: { gpu_uuid: 'G', name: '0.1' },
    c: { gpu_uuid: 'H', name: '1' },
  };
  const found = slotsByGpu({ slots });
  assert.deepEqual(
    [...found].map(([gpu, each]) => [gpu, each.map(({ uuid }) => uuid)]),
    [
      ['G', ['a', 'b']],
      ['H', ['c']],
    ],
  );
  const clients = {
    1: { gpu_uuid: 'G', wait: {} },
    2: { gpu_uuid: 'G', wait: {}, program: {} },
    3: { gpu_uuid: 'G', wait: null },
  };
  const turns = { clients, parking: { programs: { 4: { gpu_uuid: 'H' } } } };
  assert.deepEqual(queuedByGpu({ turns }).get('G'), { waiting: 1, paused: 1, parked: 0 });
  assert.deepEqual(queuedByGpu({ turns }).get('H'), { waiting: 0, paused: 0, parked: 1 });
  assert.equal(queuedByGpu({ turns: null }).size, 0);
});

test('without a choice every slot is chosen', () => {
  assert.ok(isChosen(null, 'a'));
  assert.ok(isChosen({ slots: ['a'] }, 'a'));
  assert.ok(!isChosen({ slots: ['a'] }, 'b'));
});

test('twenty owners have twenty colours, and keep them', () => {
  const names = Array.from({ length: 20 }, (_, at) => `owner-${at}`);
  const colours = names.map(colour);
  assert.equal(new Set(colours).size, 20);
  assert.deepEqual(names.map(colour), colours);
});

test('an owner without a row is its key, and the user comes first', () => {
  const owners = { a: { namespace: 'ml', name: 'train' }, b: { name: 'alice' }, c: { id: '4711' } };
  assert.deepEqual(
    ['a', 'b', 'c', 'gone'].map((key) => ownerLabel(owners, key)),
    ['ml/train', 'alice', '4711', 'gone'],
  );
  const processes = [
    { owner: 'a', account: 'alice' },
    { owner: 'b', account: 'alice' },
    { owner: null, account: 'alice' },
  ];
  assert.deepEqual(ownerNames({ owners }, processes), ['alice', 'ml/train']);
});
