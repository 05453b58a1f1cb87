"""The policy's state as the frozen values of model.sharing. It changes nothing."""

from typing import Final, NamedTuple

from gpucommons.model.sharing import ClientSharing, GpuSharing, WaitReading, WaitReason
from gpucommons.scheduler.corun.coruns import Phase, PhaseCause, Way
from gpucommons.scheduler.policy import evaluation
from gpucommons.scheduler.policy.phasing import knows_activity
from gpucommons.scheduler.policy.policy import Policy
from gpucommons.scheduler.policy.quotas import ClientLimits
from gpucommons.scheduler.policy.state import NEVER, Client, ClientStanding, GpuQueue, Mode, Terms, client_name


class QueuePosition(NamedTuple):
    """How many clients are ahead in the queue, the last of them, and how long until that one runs, if known."""

    ahead: int
    previous: Client | None
    previous_expected_s: float | None


FRONT: Final = QueuePosition(0, None, None)


def read_client(
    terms: Terms, client: Client, limits: ClientLimits, position: QueuePosition, now: float, name: str = ""
) -> ClientSharing:
    gpu = client.gpu
    bucket = client.bucket
    running = client.standing is ClientStanding.RUNNING
    effective = 1.0 if bucket is None else bucket.rate
    activity = gpu.coruns.solo_activity(client.id)
    return ClientSharing(
        client_id=client_name(client.id),
        pod=client.pod,
        namespace=client.namespace,
        gpu_uuid=client.device,
        gpu_index=gpu.index,
        protocol_version=client.version,
        pid=client.pid,
        uid=client.uid,
        gid=client.gid,
        standing=client.standing.value,
        revoked=client.revoked,
        pending_drop=client.drop_s is not None,
        turn_s=now - client.turn_s if running else None,
        turns=client.turns,
        wait=_read_wait(terms, client, position, now),
        allocated_bytes=client.used_bytes,
        allocated_peak_bytes=client.peak_bytes,
        nvml_bytes=client.nvml_bytes,
        overhead_bytes=client.overhead_bytes,
        need_bytes=None if client.version == 1 else client.need_bytes,
        memory_quota_bytes=client.memory_limit_bytes,
        memory_quota_source=limits.memory_source,
        core_quota_percent=client.core_limit_percent,
        core_quota_effective_percent=100 * effective,
        core_quota_source=limits.core_source,
        window_usage_s=_window_usage_s(client, running),
        window_limit_s=effective * gpu.clock.window_s,
        throttled=bucket is not None and bucket.throttled,
        debt_s=0.0 if bucket is None else max(0.0, -bucket.balance_s),
        billed_s=client.billed_s + (gpu.clock.billed_s - client.turn_mark_s if running else 0.0),
        demand_ratio=None if activity is None else activity.sm,
        over_claimed=client.claimed_bytes > client.used_bytes,
        name=name,
    )


def _window_usage_s(client: Client, running: bool) -> float:
    clock = client.gpu.clock
    closed = client.billed_s - client.window_base_s if client.window_end_s == clock.window_end_s else 0.0
    return closed + (clock.billed_s - max(client.turn_mark_s, clock.window_billed_s) if running else 0.0)


def _read_wait(terms: Terms, client: Client, position: QueuePosition, now: float) -> WaitReading | None:
    if client.standing is not ClientStanding.WAITING and client.standing is not ClientStanding.THROTTLED:
        return None
    gpu = client.gpu
    reason = evaluation.wait_reason(terms, client, now)
    return WaitReading(
        reason=reason or WaitReason.READY,
        waited_s=now - client.wait_s,
        ahead=position.ahead,
        room_bytes=max(0, gpu.safe_limit_bytes - gpu.running_bytes - gpu.held_bytes),
        expected_s=_expected_wait_s(terms, client, reason, position, now),
    )


def _expected_wait_s(
    terms: Terms, client: Client, reason: WaitReason | None, position: QueuePosition, now: float
) -> float | None:
    """An estimate: the turn in the way of the first client ends with its quantum, and so does each turn ahead."""
    gpu = client.gpu
    if client.standing is ClientStanding.THROTTLED:
        return None if client.bucket is None else max(0.0, client.bucket.refilled_s() - now)
    if reason is None:
        return 0.0
    if position.previous is not None:
        before_s = position.previous_expected_s
        return None if before_s is None else before_s + evaluation.quantum_s(terms, position.previous, client, reason)
    holder = next(iter(gpu.running.values()), None)
    return (
        None if holder is None else max(0.0, holder.turn_s + evaluation.quantum_s(terms, holder, client, reason) - now)
    )


def read_gpu(policy: Policy, gpu: GpuQueue, present: bool, now: float) -> GpuSharing:
    while gpu.count_some():
        pass
    queued = [*gpu.in_order(), *gpu.throttled.values()]
    front = gpu.first_waiting()
    blocked = None if front is None else evaluation.wait_reason(policy.terms, front, now)
    way, reason = _way(policy, gpu, blocked, now)
    return GpuSharing(
        uuid=gpu.key,
        index=gpu.index,
        present=present,
        running=tuple(map(client_name, gpu.running)),
        request_queue=tuple(client_name(client.id) for client in queued if not client.wait_for_mem_sent),
        wait_queue=tuple(client_name(client.id) for client in queued if client.wait_for_mem_sent),
        running_memory_bytes=gpu.running_bytes,
        running_managed_bytes=gpu.running_managed_bytes,
        running_managed_peak_bytes=gpu.peak_managed_bytes,
        total_memory_bytes=gpu.total_bytes,
        total_memory_measured=gpu.total_known,
        safe_limit_bytes=gpu.safe_limit_bytes,
        overloaded=gpu.overloaded,
        way=way,
        way_reason=reason,
        quantum_left_s=_quantum_left_s(policy.terms, gpu, front, blocked, now),
        busy_seconds=gpu.clock.busy_s,
        drop_lock={reason.value: count for reason, count in gpu.drops.items()},
        wait_for_mem=gpu.wait_for_mem,
        mem_available=gpu.mem_available,
        wait_seconds=gpu.turns_wait.reading(),
        turn_seconds=gpu.turns_length.reading(),
        drain_seconds=gpu.turns_drain.reading(),
        gain_ratio=None if gpu.phase is None else gpu.coruns.gain(gpu.phase, gpu.phase_members),
        coarse=gpu.phase is not None and not gpu.metered,
    )


def _way(policy: Policy, gpu: GpuQueue, blocked: WaitReason | None, now: float) -> tuple[str, str]:
    """How the clients share this GPU now, and why; `blocked` is why the first client in the queue waits."""
    if not policy.on:
        return "free", "scheduler_off"
    if len(gpu.running) + len(gpu.waiting) <= 1:
        return "alone", "no_contention"
    if gpu.hung:
        return "together", "call_hangs"
    if gpu.phase is not None:
        return _way_of_phase(gpu.phase)
    if gpu.overloaded:
        return "turns", "memory_overload"
    if blocked is WaitReason.TURN:
        return "turns", "serial_mode" if policy.terms.serial else "memory_unknown"
    if blocked is WaitReason.MEMORY:
        return "turns", "memory"
    if blocked is WaitReason.DEMAND:
        return "turns", "demand"
    if blocked is WaitReason.SOLO:
        return "turns", "measuring_demand"
    if policy.terms.mode is Mode.CONCURRENT:
        return "together", "concurrent_mode"
    return "together", "demand_fits" if knows_activity(policy.terms, gpu, now) else "demand_unknown"


def _way_of_phase(phase: Phase[int]) -> tuple[str, str]:
    if phase.way is Way.MEASURING:
        return "measuring", "measuring"
    if phase.way is Way.TURNS:
        return "turns", "owner_turns" if phase.cause is PhaseCause.FAIRNESS else "turns_gain"
    return "together", "turns_no_gain" if phase.cause is PhaseCause.NO_GAIN else "together_default"


def _quantum_left_s(
    terms: Terms, gpu: GpuQueue, front: Client | None, blocked: WaitReason | None, now: float
) -> float | None:
    """Until the oldest turn may be dropped; None while no client waits for its room."""
    holder = next(iter(gpu.running.values()), None)
    if front is None or holder is None or blocked is None or gpu.deadline_s == NEVER:
        return None
    return max(0.0, holder.turn_s + evaluation.quantum_s(terms, holder, front, blocked) - now)
