// What the viewer chose, in the query of the address, so that a view can be sent to another person.
const DEFAULTS = { by: 'owner', sort: '-memory_bytes', gpu: '', q: '', range: '1h', period: 'today', show: '', focus: '' };

export function fromAddress(query) {
  const given = new URLSearchParams(query);
  const get = (name) => given.get(name) ?? DEFAULTS[name];
  const sort = get('sort');
  const [by, ...id] = get('focus').split(':');
  return {
    who: { by: get('by'), sort: { key: sort.replace(/^-/, ''), down: sort.startsWith('-') }, gpu: get('gpu'), text: get('q'), all: false },
    history: { range: get('range'), end: given.get('end') || '' },
    period: get('period'),
    show: get('show'),
    focus: id.length ? { by, id: id.join(':'), label: given.get('label') || id.join(':') } : null,
  };
}

export function toAddress({ who, history, period, show, focus }) {
  const chosen = {
    by: who.by,
    sort: (who.sort.down ? '-' : '') + who.sort.key,
    gpu: who.gpu,
    q: who.text,
    range: history.range,
    period,
    show,
    focus: focus ? `${focus.by}:${focus.id}` : '',
  };
  const query = new URLSearchParams(Object.entries(chosen).filter(([name, value]) => value !== DEFAULTS[name]));
  if (focus && focus.label !== focus.id) query.set('label', focus.label);
  if (history.end) query.set('end', history.end);
  return query.size ? `?${query}` : '';
}
