// Applies what the stream sends, in place: an object means look inside, [value] is the value now, [] means gone.

export function apply(document, delta) {
  for (const key of Object.keys(delta)) {
    const change = delta[key];
    if (!Array.isArray(change)) apply(document[key], change);
    else if (change.length) put(document, key, change[0]);
    else delete document[key];
  }
  return document;
}

// Keys may be names that people chose: __proto__ is one like any other.
function put(document, key, value) {
  if (key !== '__proto__') document[key] = value;
  else Object.defineProperty(document, key, { value, configurable: true, enumerable: true, writable: true });
}
