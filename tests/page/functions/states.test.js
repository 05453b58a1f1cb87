import assert from 'node:assert/strict';
import test from 'node:test';
import { colour, ownerLabel, ownerNames } from './static/owners.js';
import { holdersOf, isChosen, queuedByGpu, slotDetail, slotsByGpu, stateWord } from './static/states.js';

const plain = (text) => text.replaceAll('\u202f', ' ');
const slot = (state, more) => ({ state, holders: [], hidden_holders: 0, since_unix_s: null, why: '', ...more });

test('an account is named once, and hidden holders are counted', () => {
  const holders = [{ account: 'alice' }, { account: 'bob' }, { account: 'alice' }];
  assert.equal(holdersOf(slot('busy', { holders })), 'alice, bob');
  assert.equal(holdersOf(slot('busy', { holders: [], hidden_holders: 1 })), 'another user');
  assert.equal(holdersOf(slot('busy', { holders: holders.slice(0, 1), hidden_holders: 2 })), 'alice, 2 other users');
});

test('each state has its detail', () => {
  const holders = [{ account: 'alice' }];
  assert.equal(plain(slotDetail(slot('held_idle', { holders, idle_s: 120 }), 0)), 'by alice, not used for 2 min');
  assert.equal(plain(slotDetail(slot('busy', { holders, since_unix_s: 10 }), 70)), 'by alice, held for 1 min');
  assert.equal(slotDetail(slot('busy', { holders }), 70), 'by alice');
  assert.equal(slotDetail(slot('free'), 70), '');
  assert.equal(slotDetail(slot('lost', { why: 'it fell off the bus' }), 70), 'it fell off the bus');
  assert.equal(stateWord('held_idle'), 'held idle');
  assert.equal(stateWord('new_state'), 'new_state');
});

test('slots and queues are found by GPU', () => {
  const slots = { a: { gpu_uuid: 'G', name: '0.0' }, b: { gpu_uuid: 'G', name: '0.1' }, c: { gpu_uuid: 'H', name: '1' } };
  const found = slotsByGpu({ slots });
  assert.deepEqual([...found].map(([gpu, each]) => [gpu, each.map(({ uuid }) => uuid)]), [['G', ['a', 'b']], ['H', ['c']]]);
  const clients = { 1: { gpu_uuid: 'G', wait: {} }, 2: { gpu_uuid: 'G', wait: {}, program: {} }, 3: { gpu_uuid: 'G', wait: null } };
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
  assert.deepEqual(['a', 'b', 'c', 'gone'].map((key) => ownerLabel(owners, key)), ['ml/train', 'alice', '4711', 'gone']);
  const processes = [{ owner: 'a', account: 'alice' }, { owner: 'b', account: 'alice' }, { owner: null, account: 'alice' }];
  assert.deepEqual(ownerNames({ owners }, processes), ['alice', 'ml/train']);
});
