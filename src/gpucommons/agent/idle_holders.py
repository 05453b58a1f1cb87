"""The holders of slots as the ladder sees them: containers, pods, jobs, leases, a user's programs on a GPU. Pure."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from gpucommons.config.idle import IdleRuleSettings
from gpucommons.idle.messages import HeldIdle
from gpucommons.model.allocations import Allocation, AllocationReading, AllocationState, WorkloadKind
from gpucommons.model.containers import all_containers
from gpucommons.model.idle import IdleKey, IdlePeriod, IdlePeriods
from gpucommons.model.pods import IDLE_LABEL, PodReading
from gpucommons.model.snapshot import Readings
from gpucommons.model.usage import UNATTRIBUTED
from gpucommons.owners.slot_states import shortest_idle_s
from gpucommons.rules.identities import account_name
from gpucommons.rules.placement import says_no
from gpucommons.scheduler.programs.commands import short_command


def holders_of(reading: AllocationReading) -> Mapping[str, list[Allocation]]:
    """The slots of each holder, by key. What has no owner is left out: no message could reach anyone."""
    found: dict[str, list[Allocation]] = {}
    for each in reading.allocations:
        if each.share and each.account != UNATTRIBUTED:
            found.setdefault(holder_key(each), []).append(each)
    return found


def holder_key(allocation: Allocation) -> str:
    """A workload holds its slots together. The programs of a user are not one workload: each GPU counts by itself."""
    if allocation.kind is WorkloadKind.PROCESS:
        return f"{allocation.workload_id}@{allocation.slot.uuid}"
    return allocation.workload_id


def idle_periods(reading: AllocationReading) -> IdlePeriods:
    """What the next agent has to know of the idle periods."""
    found: dict[IdleKey, IdlePeriod] = {}
    for each in reading.allocations:
        if each.idle_s is not None:
            processes = frozenset(each.processes) if each.kind is WorkloadKind.PROCESS else frozenset()
            found[each.workload_id, each.slot.uuid] = IdlePeriod(each.idle_s, (), processes)
    return found


def idle_rule(allocation: Allocation, rules: Iterable[IdleRuleSettings]) -> IdleRuleSettings | None:
    """The first rule that matches the user, or the pod of what has no user."""
    name = account_name(allocation.account)
    return next((rule for rule in rules if fnmatchcase(name, rule.user)), None)


def has_opt_out(allocation: Allocation, readings: Readings) -> bool:
    """By the label of its container, or the annotation or a kept label of its pod."""
    id, pods = allocation.workload_id, readings.pods or PodReading({})
    container = all_containers(readings.docker, readings.podman).get(id)
    pod = pods.find(id) or pods.by_container_id.get(id)
    given = [container.labels] if container else []
    given += [pod.annotations, pod.labels] if pod else []
    return any(says_no(labels, IDLE_LABEL) for labels in given)


def held_idle(key: str, rows: list[Allocation], readings: Readings, can_park: bool) -> HeldIdle:
    first = rows[0]
    pids = tuple(dict.fromkeys(process.pid for each in rows for process in each.processes))
    return HeldIdle(
        key,
        first.kind,
        _name(first, readings),
        first.workload_id,
        first.account.user,
        account_name(first.account),
        tuple(each.slot.name for each in rows),
        shortest_idle_s(rows) or 0.0,
        _since(rows, readings),
        pids,
        first.account.namespace,
        any(each.state is not AllocationState.HELD for each in rows),
        can_park,
    )


def _name(allocation: Allocation, readings: Readings) -> str:
    """The command of a plain process, which says more than its name: `train.py`, not `python`."""
    if allocation.kind is not WorkloadKind.PROCESS or not allocation.processes:
        return allocation.workload
    context = (readings.process_contexts or {}).get(allocation.processes[0])
    return short_command(context.command_line if context else (), allocation.workload)


def _since(rows: list[Allocation], readings: Readings) -> float | None:
    slots = {each.slot.uuid for each in rows}
    known = [each.since_wall_s for each in rows]
    if not any(known) and readings.slots is not None:
        known = [status.since_wall_s for status in readings.slots.slots if status.slot.uuid in slots]
    return min((since_s for since_s in known if since_s is not None), default=None)
