// Formats numbers with units. A missing reading is a dash, never 0.

export const MISSING = '–';
const GAP = '\u202f'; // a narrow space that does not break

const isNumber = (value) => typeof value === 'number' && Number.isFinite(value);
const withUnit = (unit, digits) => (value) => (isNumber(value) ? value.toFixed(digits) + GAP + unit : MISSING);

export const watts = withUnit('W', 0);
export const celsius = withUnit('°C', 0);
export const megahertz = withUnit('MHz', 0);
const fewHours = withUnit('h', 2);
const manyHours = withUnit('h', 1);
export const hours = (value) => (value < 10 ? fewHours : manyHours)(value);
export const kilowattHours = withUnit('kWh', 2);
const grams = withUnit('g', 0);
const kilograms = withUnit('kg', 1);
export const mass = (value) => (value >= 1000 ? kilograms(value / 1000) : grams(value));
export const money = (value) => (isNumber(value) ? value.toFixed(2) : MISSING);

export function percent(ratio) {
  if (!isNumber(ratio)) return MISSING;
  const value = ratio * 100;
  if (value > 0 && value < 0.1) return '<0.1' + GAP + '%';
  return (value > 0 && value < 1 ? value.toFixed(1) : Math.round(value)) + GAP + '%';
}

export const ofHundred = (value) => percent(isNumber(value) ? value / 100 : value);

const BYTES = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];

export function bytes(value) {
  if (!isNumber(value)) return MISSING;
  let power = 0;
  while (Math.abs(value) >= 1000 && power < BYTES.length - 1) {
    value /= 1024;
    power += 1;
  }
  const digits = power === 0 || value >= 100 ? 0 : 1;
  return value.toFixed(digits) + GAP + BYTES[power];
}

export const count = (value) => (isNumber(value) ? String(value) : MISSING);
export const score = (value) => (isNumber(value) ? value.toFixed(1) : MISSING);
export const load = (value) => (isNumber(value) ? value.toFixed(1) : MISSING);

const UNITS = [
  ['d', 86400],
  ['h', 3600],
  ['min', 60],
  ['s', 1],
];

// The two largest units that are not 0: 3 min 20 s, 2 h, 1 d 4 h.
export function duration(seconds) {
  if (!isNumber(seconds)) return MISSING;
  let left = Math.max(0, Math.round(seconds));
  if (left < 60) return left + GAP + 's';
  const at = UNITS.findIndex(([, length]) => left >= length);
  const parts = [];
  for (const [unit, length] of UNITS.slice(at, at + 2)) {
    const whole = Math.floor(left / length);
    left -= whole * length;
    if (whole) parts.push(whole + GAP + unit);
  }
  return parts.join(' ');
}

const two = (value) => String(value).padStart(2, '0');

export function clock(unix, now) {
  if (!isNumber(unix)) return MISSING;
  const at = new Date(unix * 1000);
  const time = two(at.getHours()) + ':' + two(at.getMinutes()) + ':' + two(at.getSeconds());
  const today = new Date(now * 1000).toDateString() === at.toDateString();
  return today ? time : at.getFullYear() + '-' + two(at.getMonth() + 1) + '-' + two(at.getDate()) + ' ' + time;
}

export const plural = (number, noun) => `${number} ${noun}${number === 1 ? '' : 's'}`;
export const words = (name) => name.replaceAll('_', ' ');
