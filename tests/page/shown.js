// Runs in the page: compares what each section shows with the API at the same sequence number.
async () => {
  const f = await import('/static/format.js');
  const { memoryParts } = await import('/static/sections/gpus.js');
  const main = document.querySelector('main');
  const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));

  async function atOneSequence() {
    for (let attempt = 0; attempt < 60; attempt += 1) {
      const api = await (await fetch('/api/v1/snapshot')).json();
      await frame();
      if (Number(main.dataset.sequence) === api.sequence) return api;
      await new Promise((done) => setTimeout(done, 100));
    }
    throw new Error('the page and the API never met');
  }

  const api = await atOneSequence();
  const wrong = [];
  const compared = {};
  const check = (section, selector, expected) => {
    const found = main.querySelector(selector);
    const shown = found ? found.textContent.replace(/^≈\s*/, '').trim() : 'not there';
    compared[section] = (compared[section] || 0) + 1;
    if (shown !== String(expected)) wrong.push(`${selector}: shows ${shown}, API says ${expected}`);
  };
  const at = (attribute, value) => `[${attribute}="${CSS.escape(value)}"]`;
  const { summary, problems, slots, queue, node, gpus, who, turns, accounts, events, alerts } = api;

  for (const part of summary.parts) check('now', `#now ${at('data-part-of-sentence', part.name)} b`, part.text);
  if (document.title !== `${summary.sentence} · ${api.hostname}`) wrong.push(`the title is ${document.title}`);
  for (const key of Object.keys(problems)) {
    check('now', `#now ${at('data-problem', key)} [data-f="sentence"]`, problems[key].sentence);
    check('now', `#now ${at('data-problem', key)} [data-f="remedy"]`, problems[key].remedy);
  }
  const ranks = [...main.querySelectorAll('#now [data-problem]')].map((row) => problems[row.dataset.problem].rank);
  if (ranks.some((rank, place) => rank !== place + 1)) wrong.push(`problems are shown in the order ${ranks}`);
  for (const kind of ['leases', 'waiting', 'reservations'])
    for (const id of Object.keys(queue ? queue[kind] : {})) {
      compared.queue = (compared.queue || 0) + 1;
      if (!main.querySelector(`#queue ${at('data-queue', id)}`)) wrong.push(`${kind} ${id} is not shown`);
    }

  check('node', '#node [data-f="health.score"]', f.score(node.health ? node.health.score : null));
  for (const name of Object.keys(node.health ? node.health.component_ratios : {}))
    check('node', `#node [data-f="health.${name}"]`, f.percent(1 - node.health.component_ratios[name]));
  check('node', '#node [data-f="cpu.utilization_ratio"]', f.percent(node.cpu.utilization_ratio));
  check('node', '#node [data-f="cpu.load_1m"]', f.load(node.cpu.load_1m));
  check('node', '#node [data-f="memory.total_bytes"]', f.bytes(node.memory.total_bytes));
  check('node', '#node [data-f="memory.available_bytes"]', f.bytes(node.memory.available_bytes));
  for (const name of ['cpu', 'memory', 'io'])
    check('node', `#node [data-f="pressure.${name}"]`, f.ofHundred(node.pressure[name].some.avg10_percent));
  for (const name of Object.keys(node.sources))
    if (node.sources[name].state !== 'fresh')
      check('node', `${at('data-source', name)} .state`, node.sources[name].state);

  const FORMATS = {
    use_ratio: f.percent,
    memory_used_bytes: f.bytes,
    memory_total_bytes: f.bytes,
    power_watts: f.watts,
    power_limit_watts: f.watts,
    temperature_celsius: f.celsius,
    temperature_slowdown_celsius: f.celsius,
    clock_sm_mhz: f.megahertz,
    processes: f.count,
  };
  for (const uuid of Object.keys(gpus ? gpus.by_uuid : {})) {
    const gpu = gpus.by_uuid[uuid];
    const card = `#gpus ${at('data-uuid', uuid)}`;
    if (!gpu.up) {
      check('gpus', `${card} [data-f="since_unix_s"]`, f.clock(gpu.since_unix_s, api.time_unix_s));
      check('gpus', `${card} [data-f="problem"]`, problems[`gpu_lost/${uuid}`].sentence);
      check('gpus', `${card} [data-f="remedy"]`, problems[`gpu_lost/${uuid}`].remedy);
      continue;
    }
    const states = gpu.mig_enabled ? Object.keys(gpu.mig) : [uuid];
    for (const slot of states) {
      const shown = main.querySelector(`${card} ${gpu.mig_enabled ? at('data-mig', slot) : '.states'}`).dataset.state;
      if (shown !== slots[slot].state) wrong.push(`${slot}: shows ${shown}, API says ${slots[slot].state}`);
    }
    for (const name of Object.keys(FORMATS)) check('gpus', `${card} [data-f="${name}"]`, FORMATS[name](gpu[name]));
    const { parts } = memoryParts(uuid, gpu, who);
    const owned = parts.filter((each) => each.key !== 'reserved');
    const others = main.querySelector(`${card} [data-others]`);
    const named = owned.slice(0, owned.length - (others ? Number(others.dataset.others) : 0));
    if (named.length < Math.min(3, owned.length))
      wrong.push(`${card}: names ${named.length} owners of ${owned.length}`);
    for (const part of named)
      check('gpus', `${card} ${at('data-part', part.key)} [data-f="part"]`, f.bytes(part.bytes));
    const drawn = [...main.querySelectorAll(`${card} .stack .part`)].reduce(
      (sum, each) => sum + parseFloat(each.style.width),
      0,
    );
    const expected = (100 * (gpu.memory_used_bytes + (gpu.memory_reserved_bytes || 0))) / gpu.memory_total_bytes;
    if (Math.abs(drawn - expected) > 0.5) wrong.push(`${card}: the bar is ${drawn} % long, ${expected} % is used`);
    const slices = main.querySelectorAll(`${card} [data-mig]`).length;
    if (slices !== Object.keys(gpu.mig).length) wrong.push(`${card}: ${slices} MIG instances drawn`);
    for (const reason of Object.keys(gpu.health.reasons))
      check('gpus', `${card} ${at('data-reason', reason)}`, f.words(reason));
    const marks = main.querySelectorAll(`${card} [data-reason]`).length;
    if (marks !== Object.keys(gpu.health.reasons).length) wrong.push(`${card}: ${marks} reasons shown`);
  }

  for (const key of Object.keys(who ? who.owners : {})) {
    const owner = who.owners[key];
    const row = `#who ${at('data-row', key)}`;
    check('who', `${row} [data-f="memory_bytes"]`, f.bytes(owner.memory_bytes));
    check('who', `${row} [data-f="sm_ratio"]`, f.percent(owner.sm_ratio));
    check('who', `${row} [data-f="power_watts"]`, f.watts(owner.power_watts));
    check('who', `${row} [data-f="processes"]`, f.count(owner.processes));
    check('who', `${row} [data-f="gpu_hours_today"]`, f.hours(owner.gpu_hours_today));
  }

  const quotaOf = (client) => (client.memory_quota_bytes ? ` / ${f.bytes(client.memory_quota_bytes)}` : '');
  for (const id of Object.keys(turns ? turns.clients : {})) {
    const client = turns.clients[id];
    const row = `#turns ${at('data-client', id)}`;
    const name = main.querySelector(`${row} th.name`).textContent.trim();
    if (!client.name.endsWith(name)) wrong.push(`${row}: shows ${name}, API says ${client.name}`);
    check('turns', `${row} [data-f="standing"]`, client.standing_sentence);
    check('turns', `${row} [data-f="memory_bytes"]`, `${f.bytes(client.memory_bytes)}${quotaOf(client)}`);
    check('turns', `${row} [data-f="turns_total"]`, f.count(client.turns_total));
    if (client.wait) check('turns', `${row} [data-f="expected_s"]`, f.duration(client.wait.expected_s));
  }
  for (const uuid of Object.keys(turns ? turns.gpus : {})) {
    const gpu = turns.gpus[uuid];
    check('turns', `#turns ${at('data-uuid', uuid)} [data-f="quantum_left_s"]`, f.duration(gpu.quantum_left_s));
    check('turns', `#turns ${at('data-uuid', uuid)} h3`, `GPU ${gpu.slot}`);
    check('turns', `#turns ${at('data-uuid', uuid)} [data-f="memory"]`, gpu.memory_sentence);
    if (gpu.gain_sentence) check('turns', `#turns ${at('data-uuid', uuid)} [data-f="gain"]`, gpu.gain_sentence);
    const drawn = main.querySelectorAll(`#turns ${at('data-uuid', uuid)} .turn`).length;
    if (drawn !== Object.keys(gpu.timeline).length)
      wrong.push(`${uuid}: ${drawn} turns drawn of ${Object.keys(gpu.timeline).length}`);
  }

  const parked = (turns && turns.parking && turns.parking.programs) || {};
  for (const key of Object.keys(parked)) {
    check('turns', `#turns ${at('data-parked', key)} [data-f="stage"]`, parked[key].stage);
    check('turns', `#turns ${at('data-parked', key)} [data-f="host_bytes"]`, f.bytes(parked[key].host_bytes));
  }
  const alone = [...main.querySelectorAll('#turns .left-alone li')].map((row) => row.textContent);
  const expected = (turns ? turns.left_alone : []).map((one) => `${one.name}: ${one.sentence}`);
  if (String(alone) !== String(expected)) wrong.push(`left alone: shows ${alone}, API says ${expected}`);

  const today = accounts && accounts.today;
  const users = today ? today.users : {};
  for (const user of Object.keys(users)) {
    const row = `#accounts ${at('data-user', user)}`;
    for (const name of ['held_gpu_hours', 'active_gpu_hours', 'idle_gpu_hours'])
      check('accounts', `${row} [data-f="${name}"]`, f.hours(users[user][name]));
    check('accounts', `${row} [data-f="energy_kwh"]`, f.kilowattHours(users[user].energy_kwh));
  }
  for (const [where, row] of [
    ...Object.keys(users).map((user) => [at('data-user', user), users[user]]),
    ['[data-total]', today ? today.total : {}],
  ]) {
    if ('cost' in row) check('accounts', `#accounts ${where} [data-f="cost"]`, f.money(row.cost));
    if ('co2_g' in row) check('accounts', `#accounts ${where} [data-f="co2_g"]`, f.mass(row.co2_g));
    if (!('cost' in row) && main.querySelector('#accounts [data-f="cost"]'))
      wrong.push('a cost is shown, but no price is set');
  }
  if (today) check('accounts', '#accounts [data-total] [data-f="held_gpu_hours"]', f.hours(today.total.held_gpu_hours));

  for (const id of Object.keys(events || {})) check('events', `#events ${at('data-event', id)} b`, events[id].type);
  const times = [...main.querySelectorAll('#events [data-event]')].map((row) => events[row.dataset.event].time_unix_s);
  if (times.some((time, place) => place && time > times[place - 1])) wrong.push('events are not newest first');
  for (const id of Object.keys(alerts || {})) check('events', `#events ${at('data-alert', id)} b`, alerts[id].name);

  const HISTORY = {
    gpu_utilization_ratio: f.percent,
    gpu_memory_used_bytes: f.bytes,
    gpu_power_watts: f.watts,
    gpu_temperature_celsius: f.celsius,
  };
  for (const uuid of Object.keys(gpus ? gpus.by_uuid : {})) {
    const gpu = gpus.by_uuid[uuid];
    for (const series of Object.keys(HISTORY))
      check(
        'history',
        `#history ${at('data-subject', uuid)} [data-f="${series}.now"]`,
        HISTORY[series](gpu.up ? gpu[series.replace('gpu_', '').replace('utilization', 'use')] : null),
      );
  }
  check(
    'history',
    '#history [data-series="cpu_utilization_ratio"] [data-f="now"]',
    f.percent(node.cpu.utilization_ratio),
  );
  return { wrong, compared, sequence: api.sequence };
};
