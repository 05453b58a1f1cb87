import assert from 'node:assert/strict';
import test from 'node:test';
import * as format from './static/format.js';

const plain = (text) => text.replaceAll('\u202f', ' ');

const CASES = [
  ['bytes', null, '–'],
  ['bytes', NaN, '–'],
  ['bytes', 0, '0 B'],
  ['bytes', 999, '999 B'],
  ['bytes', 1000, '1.0 KiB'],
  ['bytes', 118 * 2 ** 30, '118 GiB'],
  ['bytes', 1.5 * 2 ** 20, '1.5 MiB'],
  ['bytes', 2 ** 70, '1048576 PiB'],
  ['percent', undefined, '–'],
  ['percent', 0, '0 %'],
  ['percent', 0.0004, '<0.1 %'],
  ['percent', 0.004, '0.4 %'],
  ['percent', 2.794, '279 %'],
  ['ofHundred', 94.4, '94 %'],
  ['ofHundred', null, '–'],
  ['watts', undefined, '–'],
  ['watts', 0.4, '0 W'],
  ['celsius', 91, '91 °C'],
  ['hours', 0.117, '0.12 h'],
  ['hours', 48.73, '48.7 h'],
  ['mass', 999, '999 g'],
  ['mass', 1500, '1.5 kg'],
  ['money', 3, '3.00'],
  ['money', null, '–'],
  ['duration', 59.6, '1 min'],
  ['duration', 59.4, '59 s'],
  ['duration', 200, '3 min 20 s'],
  ['duration', 7200, '2 h'],
  ['duration', 7205, '2 h'],
  ['duration', 100000, '1 d 3 h'],
  ['duration', -5, '0 s'],
  ['duration', '60', '–'],
  ['kilowattHours', null, '–'],
  ['count', 0, '0'],
  ['score', 1.25, '1.3'],
];

for (const [name, value, text] of CASES) {
  test(`${name}(${value}) is ${text}`, () => assert.equal(plain(format[name](value)), text));
}

test('the time of another day has its date', () => {
  const noon = new Date(2026, 10, 17, 12, 3, 4).getTime() / 1000;
  assert.equal(format.clock(noon, noon + 60), '12:03:04');
  assert.equal(format.clock(noon, noon + 86400), '2026-11-17 12:03:04');
  assert.equal(format.clock(null, noon), '–');
});

test('one is singular', () => {
  assert.deepEqual(
    [0, 1, 2].map((number) => format.plural(number, 'GPU')),
    ['0 GPUs', '1 GPU', '2 GPUs'],
  );
});
