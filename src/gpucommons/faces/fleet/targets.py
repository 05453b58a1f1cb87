"""Which targets of Prometheus are which node, and which nodes no longer answer. Pure.

One node can be scraped several times: by two jobs, or on several listeners. A GPU is its UUID, so targets with a common
UUID are one node. Simulated nodes all have the same UUIDs: there each target is a node.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from gpucommons.base.address import host_of
from gpucommons.faces.fleet import queries
from gpucommons.faces.fleet.samples import FleetAnswers, Sample

_UNNAMED = "(no instance label)"


@dataclass(frozen=True, slots=True)
class FleetTargets:
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
    node_of = _nodes(answering, uuids, simulated.keys())
    known = {uuid for instance in answering - simulated.keys() for uuid in uuids.get(instance, ())}
    before = _uuids([*answers.remembered_states, *answers.remembered_gpus])
    # A target that had only GPUs that answer elsewhere now was renamed, not lost.
    silent = {each for each in silent_targets(answers) if not before.get(each) or before[each] - known}
    silent |= {*_down(answers, last_seen, answering)}
    names = _names(answers, {*node_of.values(), *silent})
    return FleetTargets(node_of, silent, last_seen, simulated, names, known)


def _answering(answers: FleetAnswers) -> set[str]:
    return {row.instance for row in answers.of(queries.SNAPSHOT_TIME)}


def _last_seen(answers: FleetAnswers) -> dict[str, float]:
    found: dict[str, float] = {}
    for row in answers.seen:
        found[row.instance] = max(row.value or 0.0, found.get(row.instance, 0.0))
    return found


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
    found: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        found[row.instance].update(filter(None, (row.labels.get("uuid"), row.labels.get("gpu_uuid"))))
    return found


def _nodes(
    answering: AbstractSet[str], uuids: Mapping[str, AbstractSet[str]], simulated: AbstractSet[str]
) -> dict[str, str]:
    """The target with the most GPUs stands for its node."""
    node_of: dict[str, str] = {}
    node_with: dict[str, str] = {}
    for instance in sorted(answering, key=lambda each: (-len(uuids.get(each, ())), each)):
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
    return {each: (each or _UNNAMED) if repeated[name] > 1 else name for each, name in names.items()}
