"""From the answers of Prometheus to the view of the fleet: every node and every slot once. Pure.

The slots of a node that does not answer are those that it had within the last hour, without their readings.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from gpucommons.base.address import page_address
from gpucommons.base.text import parse_decimal
from gpucommons.faces.fleet import queries
from gpucommons.faces.fleet.samples import FleetAnswers, Sample
from gpucommons.faces.fleet.targets import FleetTargets, targets_of
from gpucommons.model.fleet import FleetNode, FleetSlot, FleetState, FleetView

_DIGITS = re.compile(r"([0-9]+)", re.ASCII)
_NUMBERS = (queries.SINCE, queries.IDLE, queries.UTILIZATION, queries.MEMORY, queries.QUEUED)
_PLACE = {state: place for place, state in enumerate(FleetState)}

Key = tuple[str, str]
"""The instance of a node, and the UUID of a slot or GPU."""


def fleet_view(answers: FleetAnswers, page_pattern: str) -> FleetView:
    targets = targets_of(answers)
    nodes = sorted(_nodes(answers, targets, page_pattern), key=lambda node: _natural(node.name))
    order = {node.instance: place for place, node in enumerate(nodes)}
    slots = [*_answering_slots(answers, targets), *_silent_slots(answers, targets)]
    return FleetView(answers.time_wall_s, tuple(nodes), tuple(sorted(slots, key=lambda slot: _listed(slot, order))))


def _listed(slot: FleetSlot, order: Mapping[str, int]) -> tuple[object, ...]:
    """Free slots first; of those that are held idle, the longest first."""
    return _PLACE[slot.state], -(slot.idle_s or 0.0), order[slot.node], _natural(slot.slot), slot.uuid


def _natural(text: str) -> tuple[tuple[int, str], ...]:
    """gpu-9 before gpu-10."""
    numbered = ((parse_decimal(part), part) for part in _DIGITS.split(text))
    return tuple((-1, part) if number is None else (number, "") for number, part in numbered)


def _nodes(answers: FleetAnswers, targets: FleetTargets, page_pattern: str) -> Iterator[FleetNode]:
    waiting: dict[str, dict[str, float]] = defaultdict(dict)
    for row in answers.of(queries.LEASES_WAITING):
        if row.instance in targets.node_of and row.value is not None:
            waiting[targets.node_of[row.instance]][row.labels.get("user", "")] = row.value
    for instance, name in targets.names.items():
        yield FleetNode(
            instance,
            name,
            page_address(page_pattern, instance, name),
            instance not in targets.silent,
            targets.last_seen.get(instance) or None,
            targets.simulated.get(instance, ""),
            round(sum(waiting[instance].values())) if instance in waiting else None,
        )


@dataclass(frozen=True, slots=True)
class _Readings:
    """The readings of slots and GPUs that answer, by metric (and kind, where it has one), node and UUID."""

    values: Mapping[tuple[str, str], Mapping[Key, float]]
    holders: Mapping[Key, Mapping[str, float]]
    models: Mapping[Key, str]

    def number(self, metric: str, key: Key, kind: str = "") -> float | None:
        return self.values.get((metric, kind), {}).get(key)

    def whole(self, metric: str, key: Key, kind: str) -> int | None:
        value = self.number(metric, key, kind)
        return None if value is None else round(value)


def _readings(answers: FleetAnswers, targets: FleetTargets) -> _Readings:
    values: dict[tuple[str, str], dict[Key, float]] = defaultdict(dict)
    holders: dict[Key, dict[str, float]] = defaultdict(dict)
    models = {key: row.labels.get("name", "") for key, row in _placed(answers.of(queries.GPU_INFO), targets.node_of)}
    for key, row in _placed(answers.of(queries.HOLDER), targets.node_of):
        holders[key][row.labels.get("holder", "")] = row.value or 0.0
    for metric in _NUMBERS:
        for key, row in _placed(answers.of(metric), targets.node_of):
            if row.value is not None:
                values[metric, row.labels.get("which") or row.labels.get("queue") or ""][key] = row.value
    return _Readings(values, holders, models)


def _placed(rows: Iterable[Sample], node_of: Mapping[str, str]) -> Iterator[tuple[Key, Sample]]:
    """The rows of nodes that answer. A row without a UUID is left out."""
    for row in rows:
        uuid, node = row.labels.get("uuid"), node_of.get(row.instance)
        if uuid and node is not None:
            yield (node, uuid), row


def _answering_slots(answers: FleetAnswers, targets: FleetTargets) -> list[FleetSlot]:
    readings = _readings(answers, targets)
    newest: dict[Key, tuple[tuple[float, int], Sample]] = {}
    for key, row in _placed(answers.states, targets.node_of):
        # Of two series with the same time, the one that promises less is in force.
        rank = (row.value or 0.0, _PLACE[_state(row)])
        if key not in newest or rank > newest[key][0]:
            newest[key] = rank, row
    found = {key: _slot(key, row, readings) for key, (_, row) in newest.items()}
    with_slots = {(slot.node, slot.gpu_uuid) for slot in found.values()}
    for key, row in _placed(answers.of(queries.GPU_INFO), targets.node_of):
        # A GPU without a slot: of an older agent, or in MIG mode without an instance.
        if key not in with_slots:
            found[key] = _slot(key, row, readings)
    first = {(slot.node, slot.gpu_uuid): slot.uuid for slot in reversed(found.values())}
    return [_with_queue(slot, first[slot.node, slot.gpu_uuid], readings) for slot in found.values()]


def _state(row: Sample) -> FleetState:
    given = row.labels.get("state", "")
    return FleetState(given) if given in _PLACE else FleetState.UNKNOWN


def _identified(key: Key, row: Sample, model: str) -> FleetSlot:
    node, uuid = key
    labels = row.labels
    gpu = parse_decimal(labels.get("gpu", ""))
    return FleetSlot(
        node=node,
        slot=labels.get("slot") or labels.get("gpu", ""),
        uuid=uuid,
        gpu_uuid=labels.get("gpu_uuid") or uuid,
        gpu_index=gpu,
        model=model,
        profile=labels.get("profile", ""),
        state=_state(row),
    )


def _slot(key: Key, row: Sample, readings: _Readings) -> FleetSlot:
    holders = readings.holders.get(key, {})
    model = readings.models.get((key[0], row.labels.get("gpu_uuid") or key[1]), "")
    slot = _identified(key, row, model)
    return replace(
        slot,
        holders=tuple(sorted(filter(None, holders), key=lambda holder: (-holders[holder], holder))),
        since_wall_s=readings.number(queries.SINCE, key),
        idle_s=readings.number(queries.IDLE, key) if slot.state is FleetState.HELD_IDLE else None,
        utilization_ratio=readings.number(queries.UTILIZATION, key),
        memory_total_bytes=readings.whole(queries.MEMORY, key, "total"),
        memory_free_bytes=readings.whole(queries.MEMORY, key, "free"),
    )


def _with_queue(slot: FleetSlot, first_uuid: str, readings: _Readings) -> FleetSlot:
    """Clients wait for a slot or for a GPU. Those of a GPU are counted once, at its first slot."""
    uuids = {slot.uuid, slot.gpu_uuid} if slot.uuid == first_uuid else {slot.uuid}
    waiting, paused, parked = (
        sum(readings.whole(queries.QUEUED, (slot.node, uuid), queue) or 0 for uuid in uuids)
        for queue in ("waiting", "paused", "parked")
    )
    return replace(slot, waiting=waiting, paused=paused, parked=parked) if waiting or paused or parked else slot


def _silent_slots(answers: FleetAnswers, targets: FleetTargets) -> Iterator[FleetSlot]:
    at_home = {instance: instance for instance in targets.silent}
    models = {key: row.labels.get("name", "") for key, row in _placed(answers.remembered_gpus, at_home)}
    rows = dict(_placed(answers.remembered_states, at_home))
    with_slots = {(node, row.labels.get("gpu_uuid", "")) for (node, _), row in rows.items()}
    rows |= {key: row for key, row in _placed(answers.remembered_gpus, at_home) if key not in with_slots}
    for (node, uuid), row in rows.items():
        if uuid not in targets.answering_uuids:
            model = models.get((node, row.labels.get("gpu_uuid") or uuid), "")
            yield replace(_identified((node, uuid), row, model), state=FleetState.SILENT)
