"""From the answers of Prometheus to the view of the fleet: every node and every slot once. Pure.

Which targets are which node, and which nodes no longer answer, comes first.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import NamedTuple

from gpucommons.base.address import host_of, page_address
from gpucommons.base.text import parse_decimal
from gpucommons.faces.fleet import queries
from gpucommons.faces.fleet.queries import FleetAnswers, Sample
from gpucommons.model.fleet import FleetNode, FleetSlot, FleetState, FleetView

# Which targets of Prometheus are which node, and which nodes no longer answer. Pure.
#
# One node can be scraped several times: by two jobs, or on several listeners. A GPU is its UUID, so targets with a
# common UUID are one node. Simulated nodes all have the same UUIDs: there each target is a node.

_UNNAMED = "(no instance label)"


class FleetTargets(NamedTuple):
    """`node_of` maps each target that answers to the target that stands for its node.

    `silent` has the targets that do not answer. `last_seen` is when a target's last snapshot was taken, if that was
    within the last hour. `simulated` has the scenario of a simulated node. `answering_uuids` are those of nodes
    that are not simulated.
    """

    node_of: Mapping[str, str]
    silent: AbstractSet[str]
    last_seen: Mapping[str, float]
    simulated: Mapping[str, str]
    names: Mapping[str, str]
    answering_uuids: AbstractSet[str]


def silent_targets(answers: FleetAnswers) -> list[str]:
    """Targets that answered within the last hour and do not answer now."""
    return sorted(_last_seen(answers).keys() - _answering(answers))


def targets_of(answers: FleetAnswers) -> FleetTargets:
    answering, last_seen = _answering(answers), _last_seen(answers)
    simulated = {row.instance: row.labels.get("scenario", "") for row in answers.of(queries.SIMULATED)}
    uuids = _uuids([*answers.states, *answers.of(queries.GPU_INFO)])
    node_of = _nodes_of_targets(answering, uuids, simulated.keys())
    read_uuids = {uuid for instance in answering - simulated.keys() for uuid in uuids.get(instance, ())}
    before = _uuids([*answers.remembered_states, *answers.remembered_gpus])
    # A target that had only GPUs that answer elsewhere now was renamed, not lost.
    silent = {target for target in silent_targets(answers) if not before.get(target) or before[target] - read_uuids}
    silent |= {*_down(answers, last_seen, answering)}
    names = _names(answers, {*node_of.values(), *silent})
    return FleetTargets(node_of, silent, last_seen, simulated, names, read_uuids)


def _answering(answers: FleetAnswers) -> set[str]:
    return {row.instance for row in answers.of(queries.SNAPSHOT_TIME)}


def _last_seen(answers: FleetAnswers) -> dict[str, float]:
    last_seen: dict[str, float] = {}
    for row in answers.seen:
        last_seen[row.instance] = max(row.value or 0.0, last_seen.get(row.instance, 0.0))
    return last_seen


def _down(answers: FleetAnswers, last_seen: Mapping[str, float], answering: AbstractSet[str]) -> Iterable[str]:
    """Targets that have been down for longer than an hour: of a job that has nodes, or chosen by the selector.

    A target on the host of a node that answers is another listener of that node.
    """
    jobs = {row.labels.get("job") for row in answers.seen}
    hosts = {host_of(instance) for instance in answering}
    for row in answers.down:
        is_node = answers.selected or row.labels.get("job") in jobs
        if is_node and row.instance not in last_seen and host_of(row.instance) not in hosts:
            yield row.instance


def _uuids(rows: Iterable[Sample]) -> Mapping[str, AbstractSet[str]]:
    """The UUIDs of GPUs and slots by target."""
    by_instance: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        by_instance[row.instance].update(filter(None, (row.labels.get("uuid"), row.labels.get("gpu_uuid"))))
    return by_instance


def _nodes_of_targets(
    answering: AbstractSet[str], uuids: Mapping[str, AbstractSet[str]], simulated: AbstractSet[str]
) -> dict[str, str]:
    """The target with the most GPUs stands for its node."""
    node_of: dict[str, str] = {}
    node_with: dict[str, str] = {}
    for instance in sorted(answering, key=lambda target: (-len(uuids.get(target, ())), target)):
        own = frozenset[str]() if instance in simulated else uuids.get(instance, frozenset())
        node = min((node_with[uuid] for uuid in own if uuid in node_with), default=instance)
        node_of[instance] = node
        for uuid in own:
            node_with.setdefault(uuid, node)
    return node_of


def _names(answers: FleetAnswers, instances: AbstractSet[str]) -> dict[str, str]:
    """The label `node`, else the host; the whole instance where several nodes would have the same name."""
    labelled = {
        row.instance: row.labels["node"]
        for row in [*answers.down, *answers.seen]
        if row.instance in instances and row.labels.get("node")
    }
    names = {instance: labelled.get(instance) or host_of(instance) or _UNNAMED for instance in instances}
    repeated = Counter(names.values())
    return {target: (target or _UNNAMED) if repeated[name] > 1 else name for target, name in names.items()}


# From the answers of Prometheus to the view of the fleet: every node and every slot once. Pure.
#
# The slots of a node that does not answer are those that it had within the last hour, without their readings.

_DIGITS = re.compile(r"([0-9]+)", re.ASCII)
_NUMBERS = (queries.SINCE, queries.IDLE, queries.UTILIZATION, queries.MEMORY, queries.QUEUED)
_PLACE = {state: place for place, state in enumerate(FleetState)}
_STATES = {state.value: state for state in FleetState}

Key = tuple[str, str]
"""The instance of a node, and the UUID of a slot or GPU."""


def fleet_view(answers: FleetAnswers, page_pattern: str) -> FleetView:
    targets = targets_of(answers)
    nodes = sorted(_nodes(answers, targets, page_pattern), key=lambda node: _natural(node.name))
    order = {node.instance: place for place, node in enumerate(nodes)}
    slots = [*_answering_slots(answers, targets), *_silent_slots(answers, targets)]
    return FleetView(
        answers.time_wall_s, tuple(nodes), tuple(sorted(slots, key=lambda slot: _listing_order(slot, order)))
    )


def _listing_order(slot: FleetSlot, order: Mapping[str, int]) -> tuple[object, ...]:
    """Free slots first; of those that are held idle, the longest first."""
    return _PLACE[slot.state], -(slot.idle_s or 0.0), order[slot.node], _natural(slot.slot), slot.uuid


@lru_cache(maxsize=4096)
def _natural(text: str) -> tuple[tuple[int, str], ...]:
    """gpu-9 before gpu-10."""
    numbered = ((parse_decimal(part), part) for part in _DIGITS.split(text))
    return tuple((-1, part) if number is None else (number, "") for number, part in numbered)


def _nodes(answers: FleetAnswers, targets: FleetTargets, page_pattern: str) -> Iterator[FleetNode]:
    waiting: dict[str, dict[str, float]] = defaultdict(dict)
    for row in answers.of(queries.LEASES_WAITING):
        if row.instance in targets.node_of and row.value is not None:
            waiting[targets.node_of[row.instance]][row.labels.get("user", "")] = row.value
    problems: dict[str, dict[str, int]] = defaultdict(dict)
    for row in answers.of(queries.PROBLEMS):
        if row.instance in targets.node_of and row.value:
            problems[targets.node_of[row.instance]][row.labels.get("kind", "")] = int(row.value)
    for instance, name in targets.names.items():
        yield FleetNode(
            instance,
            name,
            page_address(page_pattern, instance, name),
            instance not in targets.silent,
            targets.last_seen.get(instance) or None,
            targets.simulated.get(instance, ""),
            round(sum(waiting[instance].values())) if instance in waiting else None,
            problems.get(instance, {}),
        )


class _Readings(NamedTuple):
    """The readings of slots and GPUs that answer, by metric (and kind, where it has one), node and UUID."""

    values: Mapping[tuple[str, str], Mapping[Key, float]]
    holders: Mapping[Key, Mapping[str, float]]
    models: Mapping[Key, str]

    def number(self, metric: str, key: Key, kind: str = "") -> float | None:
        return self.values.get((metric, kind), {}).get(key)

    def whole(self, metric: str, key: Key, kind: str) -> int | None:
        value = self.number(metric, key, kind)
        return None if value is None else round(value)


_NO_READINGS = _Readings({}, {}, {})


def _readings(answers: FleetAnswers, targets: FleetTargets) -> _Readings:
    values: dict[tuple[str, str], dict[Key, float]] = defaultdict(dict)
    holders: dict[Key, dict[str, float]] = defaultdict(dict)
    models = {
        key: row.labels.get("name", "") for key, row in _place_rows(answers.of(queries.GPU_INFO), targets.node_of)
    }
    for key, row in _place_rows(answers.of(queries.HOLDER), targets.node_of):
        holders[key][row.labels.get("holder", "")] = row.value or 0.0
    for metric in _NUMBERS:
        for key, row in _place_rows(answers.of(metric), targets.node_of):
            if row.value is not None:
                values[metric, row.labels.get("which") or row.labels.get("queue") or ""][key] = row.value
    return _Readings(values, holders, models)


def _place_rows(rows: Iterable[Sample], node_of: Mapping[str, str]) -> Iterator[tuple[Key, Sample]]:
    """The rows of nodes that answer. A row without a UUID is left out."""
    for row in rows:
        labels = row.labels
        uuid, node = labels.get("uuid"), node_of.get(labels.get("instance", ""))
        if uuid and node is not None:
            yield (node, uuid), row


def _answering_slots(answers: FleetAnswers, targets: FleetTargets) -> list[FleetSlot]:
    readings = _readings(answers, targets)
    newest: dict[Key, tuple[tuple[float, int], Sample]] = {}
    for key, row in _place_rows(answers.states, targets.node_of):
        # Of two series with the same time, the one that promises less is in force.
        rank = (row.value or 0.0, _PLACE[_state(row)])
        if key not in newest or rank > newest[key][0]:
            newest[key] = rank, row
    slots = {key: _slot(key, row, readings.models, readings) for key, (_, row) in newest.items()}
    with_slots = {(slot.node, slot.gpu_uuid) for slot in slots.values()}
    for key, row in _place_rows(answers.of(queries.GPU_INFO), targets.node_of):
        # A GPU without a slot: of an older agent, or in MIG mode without an instance.
        if key not in with_slots:
            slots[key] = _slot(key, row, readings.models, readings)
    if not any(metric == queries.QUEUED for metric, _ in readings.values):
        return list(slots.values())
    first = {(slot.node, slot.gpu_uuid): slot.uuid for slot in reversed(slots.values())}
    return [_with_queue(slot, first[slot.node, slot.gpu_uuid], readings) for slot in slots.values()]


def _state(row: Sample) -> FleetState:
    return _STATES.get(row.labels.get("state", ""), FleetState.UNKNOWN)


def _slot(key: Key, row: Sample, models: Mapping[Key, str], readings: _Readings | None = None) -> FleetSlot:
    """A node that does not answer has no readings, and its slots have the state SILENT."""
    (node, uuid), labels = key, row.labels
    gpu_uuid = labels.get("gpu_uuid") or uuid
    state = FleetState.SILENT if readings is None else _state(row)
    has = readings or _NO_READINGS
    holders = has.holders.get(key, {})
    return FleetSlot(
        node=node,
        slot=labels.get("slot") or labels.get("gpu", ""),
        uuid=uuid,
        gpu_uuid=gpu_uuid,
        gpu_index=parse_decimal(labels.get("gpu", "")),
        model=models.get((node, gpu_uuid), ""),
        profile=labels.get("profile", ""),
        state=state,
        holders=tuple(sorted(filter(None, holders), key=lambda holder: (-holders[holder], holder))),
        since_wall_s=has.number(queries.SINCE, key),
        idle_s=has.number(queries.IDLE, key) if state is FleetState.HELD_IDLE else None,
        utilization_ratio=has.number(queries.UTILIZATION, key),
        memory_total_bytes=has.whole(queries.MEMORY, key, "total"),
        memory_free_bytes=has.whole(queries.MEMORY, key, "free"),
    )


def _with_queue(slot: FleetSlot, first_uuid: str, readings: _Readings) -> FleetSlot:
    """Clients wait for a slot or for a GPU. Those of a GPU are counted once, at its first slot."""
    uuids = {slot.uuid, slot.gpu_uuid} if slot.uuid == first_uuid else {slot.uuid}
    waiting, paused, parked = (
        sum(readings.whole(queries.QUEUED, (slot.node, uuid), queue) or 0 for uuid in uuids)
        for queue in ("waiting", "paused", "parked")
    )
    return slot._replace(waiting=waiting, paused=paused, parked=parked) if waiting or paused or parked else slot


def _silent_slots(answers: FleetAnswers, targets: FleetTargets) -> Iterator[FleetSlot]:
    at_home = {instance: instance for instance in targets.silent}
    models = {key: row.labels.get("name", "") for key, row in _place_rows(answers.remembered_gpus, at_home)}
    rows = dict(_place_rows(answers.remembered_states, at_home))
    with_slots = {(node, row.labels.get("gpu_uuid", "")) for (node, _), row in rows.items()}
    rows |= {key: row for key, row in _place_rows(answers.remembered_gpus, at_home) if key not in with_slots}
    for (node, uuid), row in rows.items():
        if uuid not in targets.answering_uuids:
            yield _slot((node, uuid), row, models)
