// Owners: their colours, and the focus on one of them.

const COLOURS = 20;
const MOST_REMEMBERED = 500;
const slots = new Map();

// By name, since accounts, turns and the queue have names only. An owner has the same colour on every visit, unless another
// owner already has it.
export function colour(name) {
  let slot = slots.get(name);
  if (slot === undefined) {
    const taken = new Array(COLOURS).fill(0);
    for (const used of slots.values()) taken[used] += 1;
    slot = hash(name) % COLOURS;
    const least = Math.min(...taken);
    while (taken[slot] > least) slot = (slot + 1) % COLOURS;
    if (slots.size >= MOST_REMEMBERED) slots.delete(slots.keys().next().value);
    slots.set(name, slot);
  }
  return `own-${slot}`;
}

function hash(text) {
  let value = 7;
  for (let at = 0; at < text.length; at += 1) value = (value * 31 + text.charCodeAt(at)) >>> 0;
  return value;
}

export function ownerLabel(owners, key) {
  const owner = owners && owners[key];
  if (!owner) return key;
  return owner.namespace ? `${owner.namespace}/${owner.name}` : owner.name || owner.id;
}

// The names of the owners of processes of one account, such as those of a user's jobs; the user comes first.
export function ownerNames(who, processes) {
  const names = new Set(processes.filter(({ owner }) => owner).map(({ owner }) => ownerLabel(who.owners, owner)));
  const { account } = processes[0];
  return names.has(account) ? [...new Set([account, ...names])] : [...names];
}

export function ownersByAccount({ who }) {
  const found = new Map();
  for (const process of Object.values((who && who.processes) || {})) {
    if (process.account && process.owner) found.set(process.account, [...(found.get(process.account) || []), process]);
  }
  return new Map([...found].map(([account, processes]) => [account, ownerNames(who, processes)]));
}

// The owner of a scheduler client as { key, name }: the owner of its process or pod, else its user.
export function clientOwners({ who }) {
  const byPid = new Map();
  const byPod = new Map();
  const users = new Map();
  for (const row of Object.values((who && who.processes) || {})) {
    if (row.user && row.uid !== null) users.set(row.uid, row.user);
    if (!row.owner) continue;
    byPid.set(row.pid, row.owner);
    if (row.pod) byPod.set(`${row.namespace}/${row.pod}`, row.owner);
  }
  return ({ pid, namespace, pod, uid, label }) => {
    const found = byPid.get(pid) || byPod.get(`${namespace}/${pod}`) || byPod.get(label);
    const key = found || (uid === null ? `client/${label}` : `user/${uid}`);
    return { key, name: who && who.owners[key] ? ownerLabel(who.owners, key) : users.get(uid) || key };
  };
}

const FIELDS = { user: 'account', pod: 'pod_uid', container: 'container_id' };

// The group of a process row for a way of grouping: an identity, or null.
export function identity(row, key, by) {
  if (by === 'owner') return row.owner;
  if (by === 'process') return key;
  const value = row[FIELDS[by]];
  return value === null || value === undefined ? null : String(value);
}

// What is highlighted while the focus is on { by, id }: its owners, accounts, processes and scheduler clients.
export function lit(document, focus) {
  if (!focus) return null;
  const owners = new Set();
  const accounts = new Set(focus.by === 'user' ? [focus.id] : []);
  const processes = new Set();
  const pids = new Set();
  const pods = new Set();
  if (focus.by === 'owner') owners.add(focus.id);
  const rows = (document.who && document.who.processes) || {};
  for (const key of Object.keys(rows)) {
    const row = rows[key];
    if (identity(row, key, focus.by) !== focus.id) continue;
    processes.add(key);
    pids.add(row.pid);
    if (row.owner) owners.add(row.owner);
    if (row.account) accounts.add(row.account);
    if (row.pod) pods.add(`${row.namespace}/${row.pod}`);
  }
  const clients = new Set();
  const known = (document.turns && document.turns.clients) || {};
  const uid = uidOf(document, focus);
  for (const id of Object.keys(known)) {
    const client = known[id];
    const own =
      [client.pid, ...client.processes].some((pid) => pids.has(pid)) || pods.has(`${client.namespace}/${client.pod}`);
    if (own || (uid !== null && String(client.uid) === uid)) clients.add(id);
  }
  return { owners, accounts, processes, clients };
}

function uidOf(document, focus) {
  if (focus.by === 'user') {
    const own = Object.values((document.who && document.who.processes) || {}).find(
      (row) => row.account === focus.id && !row.pod,
    );
    return own && own.uid !== null ? String(own.uid) : null;
  }
  const owner = focus.by === 'owner' && document.who && document.who.owners[focus.id];
  return owner && owner.kind === 'user' ? owner.id : null;
}
