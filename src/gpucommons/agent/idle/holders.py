"""The holders of slots as the escalation sees them, and the weekly digest for administrators.

The holders are containers, pods, jobs, leases, and a user's programs on a GPU.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from gpucommons.config.accounts import IdleRuleSettings
from gpucommons.idle.messages import HeldIdle, LostGpu, digest_text
from gpucommons.ledger.errors import LedgerError
from gpucommons.ledger.events import read_events
from gpucommons.ledger.query import PeriodUsage, accounts_of, read_period
from gpucommons.model.allocations import UNATTRIBUTED, Allocation, AllocationReading, AllocationState, WorkloadKind
from gpucommons.model.events import GPU_LOST
from gpucommons.model.idle import IdleKey, IdlePeriod, IdlePeriods
from gpucommons.model.names import account_name, short_command
from gpucommons.model.snapshot import Readings
from gpucommons.model.words import By
from gpucommons.model.workloads import IDLE_LABEL, PodReading, all_containers
from gpucommons.owners.slot_states import shortest_idle_s
from gpucommons.rules.placement import says_no

# The holders of slots as the escalation sees them: containers, pods, jobs, leases, a user's programs on a GPU. Pure.


def holders_of(reading: AllocationReading) -> Mapping[str, list[Allocation]]:
    """The slots of each holder, by key. What has no owner is left out: no message could reach anyone."""
    by_holder: dict[str, list[Allocation]] = {}
    for allocation in reading.allocations:
        if allocation.share and allocation.account != UNATTRIBUTED:
            by_holder.setdefault(holder_key(allocation), []).append(allocation)
    return by_holder


def holder_key(allocation: Allocation) -> str:
    """A workload holds its slots together. The programs of a user are not one workload: each GPU counts by itself."""
    if allocation.kind is WorkloadKind.PROCESS:
        return f"{allocation.workload_id}@{allocation.slot.uuid}"
    return allocation.workload_id


def idle_periods(reading: AllocationReading) -> IdlePeriods:
    """What the next agent has to know of the idle periods."""
    periods: dict[IdleKey, IdlePeriod] = {}
    for allocation in reading.allocations:
        if allocation.idle_s is not None:
            processes = frozenset(allocation.processes) if allocation.kind is WorkloadKind.PROCESS else frozenset()
            periods[allocation.workload_id, allocation.slot.uuid] = IdlePeriod(allocation.idle_s, (), processes)
    return periods


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


def build_held_idle(key: str, rows: list[Allocation], readings: Readings, can_park: bool) -> HeldIdle:
    first = rows[0]
    pids = tuple(dict.fromkeys(process.pid for row in rows for process in row.processes))
    return HeldIdle(
        key,
        first.kind,
        _name(first, readings),
        first.workload_id,
        first.account.user,
        account_name(first.account),
        tuple(row.slot.name for row in rows),
        shortest_idle_s(rows) or 0.0,
        _since(rows, readings),
        pids,
        first.account.namespace,
        any(row.state is not AllocationState.HELD for row in rows),
        can_park,
    )


def _name(allocation: Allocation, readings: Readings) -> str:
    """The command of a plain process, which says more than its name: `train.py`, not `python`."""
    if allocation.kind is not WorkloadKind.PROCESS or not allocation.processes:
        return allocation.workload
    context = (readings.process_contexts or {}).get(allocation.processes[0])
    return short_command(context.command_line if context else (), allocation.workload)


def _since(rows: list[Allocation], readings: Readings) -> float | None:
    slots = {row.slot.uuid for row in rows}
    starts_s = [row.since_wall_s for row in rows]
    if not any(starts_s) and readings.slots is not None:
        starts_s = [status.since_wall_s for status in readings.slots.slots if status.slot.uuid in slots]
    return min((since_s for since_s in starts_s if since_s is not None), default=None)


# The weekly digest from the files of the accounts and of the events. Blocks while it reads them.

_WEEK_S: Final = 7 * 86_400


def weekly_digest(ledger: Path, event_log: Path, hostname: str, now_wall_s: float) -> str:
    """Of the seven days before now. If the accounts cannot be read, the text says so."""
    until_s = math.ceil(now_wall_s)
    since_s = until_s - _WEEK_S
    events = [event for event in read_events(event_log) if since_s <= event.wall_s < until_s]
    lost = [LostGpu(str(event.details.get("gpu", "?")), event.wall_s) for event in events if event.type == GPU_LOST]
    steps = Counter(event.type for event in events)
    try:
        usage = read_period(ledger, since_s, until_s) if ledger.exists() else PeriodUsage(since_s, until_s)
    except LedgerError as error:
        return f"The accounts of {hostname} cannot be read: {error}"
    return digest_text(hostname, accounts_of(usage, By.USER), accounts_of(usage, By.GPU), lost, steps)
