import assert from 'node:assert/strict';
import test from 'node:test';
import { fromAddress, toAddress } from './static/address.js';

test('the first view has no query', () => assert.equal(toAddress(fromAddress('')), ''));

for (const query of [
  '?by=user&sort=pid&gpu=GPU-1&q=a+b%26c',
  '?range=24h&from=1700000000&to=1700000600&lines=a.b',
  '?period=30d&show=turns',
  '?focus=owner%3Apod%3Aml%2Ftrain&label=train',
]) {
  test(`a view can be sent to another person: ${query}`, () => assert.equal(toAddress(fromAddress(query)), query));
}

for (const query of [
  '?from=9&to=3',
  '?from=-1&to=5',
  '?from=1e3&to=2e3',
  '?from=123456789012&to=999999999999',
  '?from=x',
]) {
  test(`no range of time: ${query}`, () => {
    const { from, to } = fromAddress(query).history;
    assert.deepEqual([from, to], [0, 0]);
  });
}

test('an id may contain colons, and without one there is no focus', () => {
  assert.deepEqual(fromAddress('?focus=owner:a:b').focus, { by: 'owner', id: 'a:b', label: 'a:b' });
  assert.equal(fromAddress('?focus=owner').focus, null);
});
