import assert from 'node:assert/strict';
import test from 'node:test';
import { hostUseOf } from './static/host_use.js';

const answer = (time, cpu) => ({ time_unix_s: time, host_use: { a: { start_unix_s: 5, cpu_seconds: cpu } } });

test('the share of a core is that between two answers', () => {
  assert.deepEqual(hostUseOf(answer(110, 45), answer(100, 20)).a, { start_unix_s: 5, cpu_ratio: 2.5 });
});

test('what is not known is not 0', () => {
  assert.equal(hostUseOf(answer(110, 45), null).a.cpu_ratio, null, 'the first answer');
  assert.equal(hostUseOf(answer(110, null), answer(100, 20)).a.cpu_ratio, null);
  assert.equal(hostUseOf(answer(100, 45), answer(100, 20)).a.cpu_ratio, null, 'no time between them');
  assert.equal(hostUseOf(answer(110, 5), { time_unix_s: 100, host_use: {} }).a.cpu_ratio, null, 'a new process');
  assert.deepEqual(hostUseOf({ time_unix_s: 1, host_use: null }, null), {});
});
