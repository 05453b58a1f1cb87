// The slots of each GPU, and what is queued there, from the agent's documents. Their words are the agent's.
import { words } from './format.js';

export const stateWord = words;

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
  for (const client of Object.values(turns ? turns.clients : {})) {
    if (client.wait) at(client.gpu_uuid)[client.program ? 'paused' : 'waiting'] += 1;
  }
  for (const one of Object.values(turns && turns.parking ? turns.parking.programs : {})) at(one.gpu_uuid).parked += 1;
  return found;
}

export const QUEUED = ['waiting', 'paused', 'parked'];

// Whether a slot is among those that the viewer chose to see: { name, slots } or null.
export const isChosen = (chosen, slot) => !chosen || chosen.slots.includes(slot);
