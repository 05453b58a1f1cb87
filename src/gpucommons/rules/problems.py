"""What is wrong on the node now, gravest first, each with a sentence and what to do. Pure.

The agent judges these by itself. Alerts of Alertmanager are added where it is configured, except those that repeat a
problem of this list. A power cap is normal operation and never a problem.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil
from typing import Final

from gpucommons.base.periods import spoken_duration
from gpucommons.base.text import gibibytes, parse_decimal
from gpucommons.model.accounts import LedgerState
from gpucommons.model.allocations import SlotState, SlotStatus
from gpucommons.model.cost import QuotaState, quota_states
from gpucommons.model.events import ALLOCATION_GONE, Alert, Event
from gpucommons.model.gpu import Gpu, GpuReading, XidProgram, XidProgramsReading
from gpucommons.model.idle import IdleReading
from gpucommons.model.leases import MpsReading
from gpucommons.model.names import account_name, slot_name
from gpucommons.model.ownership import ProcessShare
from gpucommons.model.problems import HealthLevel, Problem, ProblemKind
from gpucommons.model.snapshot import Readings, Snapshot, SourceState
from gpucommons.rules.health import XID_RECENT_S, Cause, HealthReason, gpu_health_of, lost_sentence, xid_meaning
from gpucommons.rules.placement import memory_shares

HELD_IDLE_S: Final = 1800.0
# The source that asks the NVIDIA driver.
DRIVER_SOURCE: Final = "nvml"
_LEDGER_DISK_LOW_BYTES: Final = 1 << 30
_AROUND_XID_S = 10.0
# A sentence names at most this many programs.
_MAX_NAMED = 3
# The XID and the end of the jobs that belong to the loss of a GPU come within this time of it.
_AROUND_LOSS_S: Final = 60.0
_ORDER: Final = {kind: place for place, kind in enumerate(ProblemKind)}
_REASON_KINDS: Final = {
    "row_remap_failed": ProblemKind.ECC,
    "uncorrected_ecc_errors": ProblemKind.ECC,
    "row_remap_pending": ProblemKind.ECC,
    "recovery_action_needed": ProblemKind.GPU_FAULT,
    "hot": ProblemKind.OVERHEATING,
    "sw_thermal_slowdown": ProblemKind.OVERHEATING,
    "hw_thermal_slowdown": ProblemKind.OVERHEATING,
    "hw_slowdown": ProblemKind.SLOWED,
    "hw_power_brake_slowdown": ProblemKind.SLOWED,
    "board_limit": ProblemKind.SLOWED,
    "reliability": ProblemKind.SLOWED,
}
_TITLES: Final = {
    ProblemKind.GPU_FAULT: "needs a recovery",
    ProblemKind.ECC: "has faulty memory",
    ProblemKind.OVERHEATING: "is overheating",
    ProblemKind.SLOWED: "is slowed down by the hardware",
}
_REMEDIES: Final = {
    ProblemKind.GPU_FAULT: "Do what the driver requests when no job runs.",
    ProblemKind.ECC: "Take the GPU out of service and reset it; replace it if the errors return.",
    ProblemKind.OVERHEATING: "Check fans, air flow and room temperature; jobs on this GPU run slower until it cools.",
    ProblemKind.SLOWED: "Check the power supply and the power cables of the GPU.",
}
_LOST_REMEDY: Final = "Drain the node and reboot it; check the GPU's seating and power if this repeats."
_CHANNEL_REMEDY: Final = "Correct [mail] or [webhook] and try it with 'gpucommons check-config FILE --send-test'"
# Alerts of stack/rules/gpucommons.yml that repeat a problem of this list.
_REPEATED: Final = {
    "GPUCommonsDriverDown": ProblemKind.DRIVER,
    "GPUCommonsGPUMissing": ProblemKind.GPU_MISSING,
    "GPUCommonsGPULost": ProblemKind.GPU_LOST,
    "GPUCommonsXIDCritical": ProblemKind.XID,
    "GPUCommonsXIDWarning": ProblemKind.XID,
    "GPUCommonsXIDApplication": ProblemKind.XID,
    "GPUCommonsGPUThrottled": ProblemKind.OVERHEATING,
    "GPUCommonsSourceDown": ProblemKind.SOURCE_FAILING,
    "GPUCommonsLedgerNotWriting": ProblemKind.LEDGER,
    "GPUCommonsTrespasser": ProblemKind.TRESPASSER,
    "GPUCommonsOutsideAllocation": ProblemKind.OUTSIDE_ALLOCATION,
    "GPUCommonsHeldIdle": ProblemKind.HELD_IDLE,
    "GPUCommonsUserQuotaExceeded": ProblemKind.OVER_QUOTA,
}
_ALERT_LEVELS: Final = {"critical": HealthLevel.CRITICAL}


# One of a kind in words, for a list of many nodes: the page of the node has the sentence.
_WORDS: Final = {
    ProblemKind.DRIVER: "driver does not answer",
    ProblemKind.GPU_LOST: "GPU lost",
    ProblemKind.GPU_MISSING: "GPU missing",
    ProblemKind.GPU_FAULT: "GPU needs a recovery",
    ProblemKind.ECC: "GPU with faulty memory",
    ProblemKind.OVERHEATING: "GPU overheating",
    ProblemKind.SLOWED: "GPU slowed down by the hardware",
    ProblemKind.NVLINK_DOWN: "GPU without some NVLinks",
    ProblemKind.XID: "XID error",
    ProblemKind.LEDGER: "accounts not written",
    ProblemKind.SOURCE_FAILING: "source failing",
    ProblemKind.TRESPASSER: "process on a leased GPU",
    ProblemKind.OUTSIDE_ALLOCATION: "job outside of its allocation",
    ProblemKind.OVER_MEMORY_SHARE: "job with more memory than its shards",
    ProblemKind.MPS: "problem of MPS",
    ProblemKind.CHANNEL_FAILING: "messages not delivered",
    ProblemKind.ALERT: "alert of Alertmanager",
    ProblemKind.OVER_QUOTA: "user over quota",
    ProblemKind.HELD_IDLE: "GPU held idle for long",
}


def problem_place(kind: str) -> int:
    """Where a kind comes in a list, the gravest first. A kind of a newer agent comes last."""
    return _ORDER[ProblemKind(kind)] if kind in _ORDER else len(_ORDER)


def problem_words(counts: Mapping[str, int]) -> str:
    """The problems of a node by kind: `GPU lost, 2 x XID error`."""
    named = sorted(counts, key=problem_place)
    return ", ".join(f"{counts[kind]} x {_word(kind)}" if counts[kind] > 1 else _word(kind) for kind in named)


def _word(kind: str) -> str:
    """That of a newer agent has its own name."""
    return _WORDS[ProblemKind(kind)] if kind in _ORDER else kind.replace("_", " ")


def problems_of(snapshot: Snapshot) -> tuple[Problem, ...]:
    """Those that the agent judges, and the alerts that fire. What could not be read causes no problem of its own."""
    own = own_problems(snapshot)
    alerts = snapshot.readings.alerts
    return own if alerts is None else _rank((*own, *_alerts(alerts.alerts, own)))


def own_problems(snapshot: Snapshot) -> tuple[Problem, ...]:
    readings = snapshot.readings
    gpus = readings.gpus.gpus if readings.gpus else ()
    ended = readings.event_log.events if readings.event_log else ()
    problems: list[Problem] = []
    hit = readings.xid_programs or XidProgramsReading()
    for gpu in gpus:
        problems += _of_gpu(gpu, snapshot.wall_s, hit) if gpu.up else [_lost_problem(gpu, ended)]
    if readings.gpus is not None:
        problems += _missing(readings.gpus)
    problems += _nvlinks(gpus)
    problems += (
        problem
        for status in (readings.slots.slots if readings.slots else ())
        for problem in _held_idle_problems(status)
    )
    problems += _trespassers(readings)
    problems += _outside_allocation(readings)
    problems += _over_memory_share(readings)
    if readings.leases is not None and readings.leases.mps is not None:
        problems += _mps(readings.leases.mps)
    if readings.ledger is not None:
        problems += _ledger(readings.ledger.ledger)
        problems += _over_quota(quota_states(readings.ledger.quotas, readings.allocations))
        problems += _hidden_over_quota(readings.ledger.hidden_over_quota)
    if readings.idle is not None:
        problems += _channels(readings.idle)
    problems += _sources(snapshot.sources.values(), snapshot.monotonic_s)
    return _rank(problems)


def _rank(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    def rank(problem: Problem) -> tuple[int, int, int, str]:
        index = -1 if problem.gpu_index is None else problem.gpu_index
        return -problem.level, _ORDER[problem.kind], index, problem.key

    return tuple(sorted(problems, key=rank))


def _lost_problem(gpu: Gpu, events: Sequence[Event]) -> Problem:
    index, since_s, xid = gpu.identity.index, gpu.since_wall_s, gpu.xid
    sentence, remedy = f"GPU {index} is lost. {lost_sentence(gpu)}", _LOST_REMEDY
    if xid.last_code is not None and xid.last_wall_s is not None and abs(xid.last_wall_s - since_s) <= _AROUND_LOSS_S:
        meaning = xid_meaning(xid.last_code)
        sentence, remedy = f"GPU {index} is lost: XID {xid.last_code}, {meaning.sentence}.", meaning.remedy
    jobs = list(dict.fromkeys(_ended_jobs(index, since_s, events)))
    if jobs:
        sentence += f" It ended {', '.join(jobs)}."
    return Problem(
        f"gpu_lost/{gpu.identity.uuid}",
        ProblemKind.GPU_LOST,
        HealthLevel.LOST,
        sentence,
        remedy,
        gpu.identity.uuid,
        index,
        since_s,
    )


def _missing(reading: GpuReading) -> Iterator[Problem]:
    """GPUs without an identity: on the PCI bus but not in the driver's list, or in its list but not to be opened."""
    for place in reading.unlisted:
        yield Problem(
            f"gpu_missing/{place}",
            ProblemKind.GPU_MISSING,
            HealthLevel.CRITICAL,
            f"The GPU at {place} does not answer: it is on the PCI bus, and the driver does not list it.",
            f"See the kernel log (dmesg | grep -i -e nvrm -e {place}), reboot, and check the GPU's seating and power.",
        )
    unopened = reading.expected - len(reading.gpus) - len(reading.unlisted)
    if unopened > 0:
        yield Problem(
            "gpu_missing/unopened",
            ProblemKind.GPU_MISSING,
            HealthLevel.CRITICAL,
            f"{unopened} of {reading.expected} GPUs cannot be opened by the driver.",
            "The agent's log and the kernel log (dmesg | grep -i nvrm) name them; then reset them or reboot.",
        )


def _ended_jobs(index: int, lost_wall_s: float, events: Sequence[Event]) -> Iterator[str]:
    """The workloads whose allocation of the GPU, or of one of its MIG devices, ended with it."""
    whole, part = slot_name(index), f"{slot_name(index)}."
    for event in events:
        # There may be thousands of events, for each of many lost GPUs.
        if event.type != ALLOCATION_GONE or abs(event.wall_s - lost_wall_s) > _AROUND_LOSS_S:
            continue
        slot = str(event.details.get("slot", ""))
        if slot == whole or slot.startswith(part):
            workload = str(event.details.get("workload", ""))
            yield f"{workload} of {event.user}" if event.user and workload != event.user else workload


def _of_gpu(gpu: Gpu, now_wall_s: float, hit: XidProgramsReading) -> Iterator[Problem]:
    grouped: dict[ProblemKind, list[HealthReason]] = {}
    for reason in gpu_health_of(gpu, now_wall_s).reasons:
        kind = _REASON_KINDS.get(reason.name)
        if kind is not None:
            grouped.setdefault(kind, []).append(reason)
    # A GPU that overheats is also slowed down: one problem, not two.
    slowed = grouped.get(ProblemKind.SLOWED, [])
    if ProblemKind.OVERHEATING in grouped and [reason.name for reason in slowed] == ["hw_slowdown"]:
        del grouped[ProblemKind.SLOWED]
    for kind, reasons in grouped.items():
        # That the GPU is hot is in the title already.
        said = [reason.sentence for reason in reasons if reason.name != "hot"] or [
            reason.sentence for reason in reasons
        ]
        yield Problem(
            f"{kind}/{gpu.identity.uuid}",
            kind,
            _level(kind, reasons),
            f"{_title(kind, gpu)}. {' '.join(said)}",
            _REMEDIES[kind],
            gpu.identity.uuid,
            gpu.identity.index,
        )
    yield from _xids(gpu, now_wall_s, hit)


def _level(kind: ProblemKind, reasons: Iterable[HealthReason]) -> HealthLevel:
    if kind is ProblemKind.OVERHEATING and any(reason.name == "hw_thermal_slowdown" for reason in reasons):
        return HealthLevel.CRITICAL
    return max(reason.level for reason in reasons)


def _title(kind: ProblemKind, gpu: Gpu) -> str:
    temperature = gpu.readings.temperature_celsius
    degrees = f" ({temperature} °C)" if kind is ProblemKind.OVERHEATING and temperature is not None else ""
    return f"GPU {gpu.identity.index} {_TITLES[kind]}{degrees}"


def _xids(gpu: Gpu, now_wall_s: float, hit: XidProgramsReading) -> Iterator[Problem]:
    """One problem for each code, however often it was reported."""
    seconds: dict[int, list[int]] = {}
    counts: dict[int, int] = {}
    for (second, code), count in gpu.xid.recent.items():
        if now_wall_s - second <= XID_RECENT_S:
            seconds.setdefault(code, []).append(second)
            counts[code] = counts.get(code, 0) + count
    for code, times_s in seconds.items():
        meaning, first_s = xid_meaning(code), min(times_s)
        minutes = max(1, ceil((now_wall_s - first_s) / 60))
        times = f" x {counts[code]} in {minutes} min" if counts[code] > 1 else ""
        yield Problem(
            f"xid/{gpu.identity.uuid}/{code}",
            ProblemKind.XID,
            HealthLevel.WARNING if meaning.cause is not Cause.HARDWARE else HealthLevel.CRITICAL,
            f"GPU {gpu.identity.index}: XID {code}{times}: {meaning.sentence}.{_hit_sentence(gpu, code, first_s, hit)}",
            meaning.remedy,
            gpu.identity.uuid,
            gpu.identity.index,
            float(first_s),
        )


def _hit_sentence(gpu: Gpu, code: int, first_s: int, hit: XidProgramsReading) -> str:
    """The programs that an XID hit, and whose they are."""
    uuid = gpu.identity.uuid
    # The driver's event and the line of the kernel log may be some seconds apart.
    programs = [
        program
        for program in hit.programs
        if (program.gpu_uuid, program.code) == (uuid, code) and program.wall_s >= first_s - _AROUND_XID_S
    ]
    hidden = hit.hidden.count((uuid, code))
    certain = [program for program in programs if program.is_certain]
    named = [xid_program_name(program) for program in (certain or programs)[:_MAX_NAMED]]
    more = len(certain or programs) - len(named) + hidden
    if not named:
        return " It hit a program of another user." if hidden else ""
    others = f" and {more} more" if more else ""
    if certain:
        return f" It hit {', '.join(named)}{others}."
    return f" The only program on the GPU was {named[0]}."


def xid_program_name(program: XidProgram) -> str:
    """`train.py (pid 1234) of alice`."""
    return f"{program.program or 'a program'} (pid {program.pid}){f' of {program.user}' if program.user else ''}"


def _nvlinks(gpus: Iterable[Gpu]) -> Iterator[Problem]:
    """Fewer links than most GPUs of the same model have. Half of them may have no bridge."""
    by_model: dict[str, list[tuple[Gpu, int]]] = {}
    for gpu in gpus:
        if gpu.up and gpu.readings.nvlinks_active is not None:
            by_model.setdefault(gpu.identity.name, []).append((gpu, gpu.readings.nvlinks_active))
    for rows in by_model.values():
        most = max(active for _, active in rows)
        if 2 * sum(active == most for _, active in rows) <= len(rows):
            continue
        for gpu, active in rows:
            if active < most:
                yield Problem(
                    f"nvlink_down/{gpu.identity.uuid}",
                    ProblemKind.NVLINK_DOWN,
                    HealthLevel.WARNING,
                    f"GPU {gpu.identity.index} has {active} of {most} NVLinks.",
                    "Check the fabric manager and the NVLink bridge; jobs on several GPUs run slower.",
                    gpu.identity.uuid,
                    gpu.identity.index,
                )


def _held_idle_problems(status: SlotStatus) -> Iterator[Problem]:
    if status.state is not SlotState.HELD_IDLE or status.idle_s is None or status.idle_s < HELD_IDLE_S:
        return
    yield Problem(
        f"held_idle/{status.slot.uuid}",
        ProblemKind.HELD_IDLE,
        HealthLevel.WARNING,
        f"GPU {status.slot.name} is held by {holder_names(status)} and has not been used for "
        f"{spoken_duration(status.idle_s)}.",
        "Ask for it back, or let the agent send messages and act ([idle]).",
        status.slot.gpu_uuid,
        status.gpu_index,
        status.since_wall_s,
    )


def holder_names(status: SlotStatus) -> str:
    """The accounts that hold a slot; a hidden one is not named."""
    names = list(dict.fromkeys(account_name(holder.account) for holder in status.holders))
    if status.hidden_holders:
        names.append("another user" if status.hidden_holders == 1 else f"{status.hidden_holders} other users")
    return ", ".join(names)


def outside_allocation(readings: Readings) -> dict[tuple[str, str], list[ProcessShare]]:
    """The processes of batch jobs on GPUs that their batch system did not give to them, by job and UUID of the GPU."""
    if readings.job_mapping is None or readings.attribution is None or readings.gpus is None:
        return {}
    given: dict[str, set[int]] = {}
    for (index, _), jobs in readings.job_mapping.jobs.items():
        for job in jobs:
            given.setdefault(job.id, set()).add(index)
    indices = {gpu.identity.uuid: gpu.identity.index for gpu in readings.gpus.gpus}
    by_place: dict[tuple[str, str], list[ProcessShare]] = {}
    for share in readings.attribution.processes:
        # A user may name cgroups of their own like jobs.
        job_id, uuid = "" if share.workload.delegated else share.workload.job or "", share.place.gpu_uuid
        if job_id in given and indices.get(uuid) not in (None, *given[job_id]):
            by_place.setdefault((job_id, uuid), []).append(share)
    return dict(sorted(by_place.items()))


def _outside_allocation(readings: Readings) -> Iterator[Problem]:
    """One for each job and GPU."""
    indices = {} if readings.gpus is None else {gpu.identity.uuid: gpu.identity.index for gpu in readings.gpus.gpus}
    for (job_id, uuid), shares in outside_allocation(readings).items():
        pid = min(share.pid for share in shares)
        yield Problem(
            f"outside_allocation/{job_id}/{uuid}",
            ProblemKind.OUTSIDE_ALLOCATION,
            HealthLevel.WARNING,
            f"Job {job_id} uses GPU {indices[uuid]}, which it was not given (pid {pid}).",
            "Ask its user; ConstrainDevices=yes in Slurm's cgroup.conf keeps jobs on their own GPUs.",
            uuid,
            indices[uuid],
        )


def _over_memory_share(readings: Readings) -> Iterator[Problem]:
    """One for each job and GPU, where another job has shards of the same GPU: alone a job may have all of it."""
    shares = memory_shares(readings)
    jobs_on = Counter(uuid for _, uuid in shares)
    for (job_id, uuid), share in shares.items():
        if share.is_exceeded and jobs_on[uuid] > 1:
            yield Problem(
                f"over_memory_share/{job_id}/{uuid}",
                ProblemKind.OVER_MEMORY_SHARE,
                HealthLevel.WARNING,
                f"Job {job_id} uses {gibibytes(share.used_bytes)} of GPU {share.gpu_index}, and its shards are "
                f"{gibibytes(share.bytes)}.",
                "It makes room first where jobs are parked; under MPS its shards are its limit "
                "('gpucommons slurm config --shards N --mps-memory-mib M').",
                uuid,
                share.gpu_index,
            )


def _trespassers(readings: Readings) -> Iterator[Problem]:
    """One problem for each process and lease. A viewer who may not see the lease does not see it."""
    if readings.leases is None:
        return
    slots = {status.slot.name: status for status in (readings.slots.slots if readings.slots else ())}
    users = {lease.request.id: lease.request.user for lease in readings.leases.leases}
    for trespasser in readings.leases.trespassers:
        slot, user = slots.get(trespasser.slot), trespasser.user or "an unknown user"
        program = f"{trespasser.process_name} (pid {trespasser.pid})"
        sentence = (
            f"GPU {trespasser.slot} is leased to {users.get(trespasser.lease_id, 'another user')}, and {user} uses it "
            f"without a lease: {program}"
        )
        if trespasser.overdue and trespasser.lease_id not in users:
            sentence = (
                f"GPU {trespasser.slot}: lease {trespasser.lease_id} is over its time limit, and {user} still uses it: "
                f"{program}"
            )
            sentence += f"; {trespasser.spared}" if trespasser.spared else ""
            remedy = "Its user has to end it, or an administrator."
        elif trespasser.paused:
            sentence += "; it is paused until the lease ends"
            remedy = "It keeps its GPU memory: if the lease needs that, its user has to end it."
        else:
            remedy = "Ask its user to end it, or to start it with 'gpucommons run'"
            if trespasser.spared:
                sentence += f"; it is not paused: {trespasser.spared}"
            else:
                remedy += '; leases.enforce = "pause" pauses such programs'
            remedy += "."
        yield Problem(
            f"trespasser/{trespasser.lease_id}/{trespasser.slot}/{trespasser.pid}",
            ProblemKind.TRESPASSER,
            HealthLevel.WARNING,
            f"{sentence}.",
            remedy,
            None if slot is None else slot.slot.gpu_uuid,
            None if slot is None else slot.gpu_index,
        )


def _mps(reading: MpsReading) -> Iterator[Problem]:
    if reading.unavailable and reading.mode != "off":
        yield Problem(
            "mps/unavailable",
            ProblemKind.MPS,
            HealthLevel.WARNING,
            f"Commands that share a GPU run without MPS, so that their limits do not hold: {reading.unavailable}.",
            'Change that, or set leases.mps = "off".',
        )
    for daemon in reading.daemons:
        if daemon.stage == "broken":
            yield Problem(
                f"mps/{daemon.gpu_uuid}/{daemon.user}",
                ProblemKind.MPS,
                HealthLevel.WARNING,
                f"The MPS daemon of {daemon.user or 'all users'} on GPU {daemon.gpu} does not run: {daemon.reason}.",
                "The agent starts it again by itself; programs that used it have to be started again.",
                daemon.gpu_uuid,
                None,
                daemon.since_wall_s,
            )


def _ledger(ledger: LedgerState) -> Iterator[Problem]:
    if ledger.begun and not ledger.writing and ledger.failures:
        yield Problem(
            "ledger/writing",
            ProblemKind.LEDGER,
            HealthLevel.WARNING,
            f"The accounts are not written: {ledger.detail}.",
            "Make the disk writable; the last hour is kept in memory, older use is lost.",
        )
    elif ledger.disk_free_bytes is not None and ledger.disk_free_bytes < _LEDGER_DISK_LOW_BYTES:
        yield Problem(
            "ledger/disk",
            ProblemKind.LEDGER,
            HealthLevel.WARNING,
            f"The disk of the ledger has {gibibytes(ledger.disk_free_bytes)} left.",
            "Free space on it, or move the ledger (ledger.path); without space no accounts are kept.",
        )


def _over_quota(states: Iterable[QuotaState]) -> Iterator[Problem]:
    for state in states:
        if state.exceeded:
            yield Problem(
                f"over_quota/{state.user}",
                ProblemKind.OVER_QUOTA,
                HealthLevel.WARNING,
                f"{state.user} holds {state.used:g} GPUs, and the quota allows {state.limit:g}.",
                "Ask for one back; 'gpucommons allocations' shows which.",
            )


def _hidden_over_quota(users: int) -> Iterator[Problem]:
    if users:
        others = "1 user holds" if users == 1 else f"{users} users hold"
        yield Problem(
            "over_quota/hidden",
            ProblemKind.OVER_QUOTA,
            HealthLevel.WARNING,
            f"{others} more GPUs than the quota allows.",
            "The administrator sees the names.",
        )


def _channels(reading: IdleReading) -> Iterator[Problem]:
    for channel in reading.channels:
        if channel.failing_since_wall_s is not None:
            waiting = f"{channel.waiting} wait" if channel.waiting != 1 else "1 waits"
            # The detail is empty for viewers that may not see it.
            cause = f": {channel.detail}" if channel.detail else ""
            yield Problem(
                f"channel_failing/{channel.name}",
                ProblemKind.CHANNEL_FAILING,
                HealthLevel.WARNING,
                f"Messages by {channel.name} are not delivered{cause} ({waiting}).",
                f"{_CHANNEL_REMEDY}; the agent tries again by itself.",
                since_wall_s=channel.failing_since_wall_s,
            )


def _sources(states: Iterable[SourceState], now_monotonic_s: float) -> Iterator[Problem]:
    """What does not exist on this node, and what was not read yet, is not a problem."""
    not_fresh = [state for state in states if not state.absent and not state.is_fresh(now_monotonic_s)]
    # A read that fails or hangs is noted as such. A reading that was good is old only if the agent itself is late.
    late = [state for state in not_fresh if state.up]
    if late:
        names = ", ".join(sorted(state.name for state in late))
        yield Problem(
            "agent_late",
            ProblemKind.SOURCE_FAILING,
            HealthLevel.WARNING,
            f"The agent is late: it has not read these sources in time: {names}.",
            "It gets too little CPU time; see the load of the machine, and limits of the agent's service or container.",
            since_wall_s=min((at_s for state in late if (at_s := state.last_success_wall_s) is not None), default=None),
        )
    for state in not_fresh:
        if state.up or not state.failures:
            continue
        why = f": {state.detail}" if state.detail else ""
        if state.name == DRIVER_SOURCE:
            yield Problem(
                "driver",
                ProblemKind.DRIVER,
                HealthLevel.CRITICAL,
                f"The NVIDIA driver does not answer{why}.",
                _as_sentence(state.remedy)
                or "See the kernel log: dmesg | grep -i nvrm; the agent tries again by itself.",
                since_wall_s=state.last_success_wall_s,
            )
            continue
        yield Problem(
            f"source_failing/{state.name}",
            ProblemKind.SOURCE_FAILING,
            HealthLevel.CRITICAL if state.essential else HealthLevel.WARNING,
            f"The source {state.name} cannot be read{why}.",
            state.remedy or "The agent's log has the reason; the agent tries again by itself.",
            since_wall_s=state.last_success_wall_s,
        )


def _as_sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _alerts(alerts: Iterable[Alert], own: Sequence[Problem]) -> Iterator[Problem]:
    # An alert may be about a slot, and so without the UUID of a GPU.
    reported = {(problem.kind, uuid) for problem in own for uuid in (problem.gpu_uuid, None)}
    for alert in alerts:
        uuid = alert.labels.get("gpu_uuid") or alert.labels.get("uuid")
        if alert.state != "active" or (_REPEATED.get(alert.name), uuid) in reported:
            continue
        index = alert.labels.get("gpu", "")
        yield Problem(
            f"alert/{alert.fingerprint}",
            ProblemKind.ALERT,
            _ALERT_LEVELS.get(alert.severity, HealthLevel.WARNING),
            f"{alert.name}: {alert.summary}" if alert.summary else alert.name,
            "Alertmanager has the details.",
            uuid,
            parse_decimal(index),
            alert.starts_wall_s,
        )
