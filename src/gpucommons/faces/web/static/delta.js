// Applies a delta of the stream in place: an object is merged, [value] replaces a value, [] removes it.

export function apply(document, delta) {
  for (const key of Object.keys(delta)) {
    const change = delta[key];
    if (!Array.isArray(change)) apply(document[key], change);
    else if (change.length) put(document, key, change[0]);
    else delete document[key];
  }
  return document;
}

// Keys may be names that users chose, including __proto__.
function put(document, key, value) {
  if (key !== '__proto__') document[key] = value;
  else Object.defineProperty(document, key, { value, configurable: true, enumerable: true, writable: true });
}
