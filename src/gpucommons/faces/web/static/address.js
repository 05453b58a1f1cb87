// What the viewer chose, in the query of the address, so that a view can be sent to another person.
const DEFAULTS = {
  ...{ by: 'owner', sort: '-memory_bytes', gpu: '', q: '' },
  ...{ range: '', end: '', from: '', to: '', lines: '' },
  ...{ period: 'today', show: '', focus: '' },
};

const unix = (text) => (/^[0-9]{1,11}$/.test(text) ? Number(text) : 0);

export function fromAddress(query) {
  const given = new URLSearchParams(query);
  const get = (name) => given.get(name) ?? DEFAULTS[name];
  const sort = get('sort');
  const [by, ...id] = get('focus').split(':');
  const [from, to] = [unix(get('from')), unix(get('to'))];
  const zoom = from && to > from ? { from, to } : { from: 0, to: 0 };
  return {
    who: {
      by: get('by'),
      sort: { key: sort.replace(/^-/, ''), down: sort.startsWith('-') },
      gpu: get('gpu'),
      text: get('q'),
      all: false,
    },
    history: { range: get('range'), end: get('end'), ...zoom, lines: get('lines').split('.').filter(Boolean) },
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
    end: history.end,
    from: history.from ? String(history.from) : '',
    to: history.from ? String(history.to) : '',
    lines: history.lines.join('.'),
    period,
    show,
    focus: focus ? `${focus.by}:${focus.id}` : '',
  };
  const query = new URLSearchParams(Object.entries(chosen).filter(([name, value]) => value !== DEFAULTS[name]));
  if (focus && focus.label !== focus.id) query.set('label', focus.label);
  return query.size ? `?${query}` : '';
}
