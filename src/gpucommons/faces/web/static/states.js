// The state of each slot in words, from the agent's documents: slots, turns and parked programs.
import { duration } from './format.js';

const WORDS = { free: 'free', held_idle: 'held idle', busy: 'busy', reserved: 'reserved', lost: 'lost', unknown: 'unknown' };

export const stateWord = (state) => WORDS[state] || state;

export function holdersOf(slot) {
  const names = [...new Set(slot.holders.map((each) => each.account))];
  if (slot.hidden_holders) names.push(slot.hidden_holders === 1 ? 'another user' : `${slot.hidden_holders} other users`);
  return names.join(', ');
}

// By which owner, and for how long.
export function slotDetail(slot, now) {
  if (slot.state === 'held_idle') return `by ${holdersOf(slot)}, not used for ${duration(slot.idle_s)}`;
  if (slot.state === 'busy') return `by ${holdersOf(slot)}${slot.since_unix_s === null ? '' : `, held for ${duration(now - slot.since_unix_s)}`}`;
  if (slot.state === 'free') return slot.since_unix_s === null ? '' : `for ${duration(now - slot.since_unix_s)}`;
  return slot.why;
}

// The slots of each GPU by its UUID, in the order of their names.
export function slotsByGpu(document) {
  const found = new Map();
  for (const uuid of Object.keys(document.slots || {})) {
    const slot = { ...document.slots[uuid], uuid };
    if (!found.has(slot.gpu_uuid)) found.set(slot.gpu_uuid, []);
    found.get(slot.gpu_uuid).push(slot);
  }
  return found;
}

// Clients that wait, programs that are paused, and parked programs on each GPU. A paused program waits for its turn.
export function queuedByGpu(document) {
  const found = new Map();
  const at = (uuid) => found.get(uuid) || found.set(uuid, { waiting: 0, paused: 0, parked: 0 }).get(uuid);
  const { turns } = document;
  for (const client of Object.values(turns ? turns.clients : {})) if (client.wait) at(client.gpu_uuid)[client.program ? 'paused' : 'waiting'] += 1;
  for (const one of Object.values(turns && turns.parking ? turns.parking.programs : {})) at(one.gpu_uuid).parked += 1;
  return found;
}

export const QUEUED = ['waiting', 'paused', 'parked'];

// Whether a slot is among those that the viewer chose to see: { name, slots } or null.
export const isChosen = (chosen, slot) => !chosen || chosen.slots.includes(slot);
