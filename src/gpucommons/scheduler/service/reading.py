"""The scheduler's state as the frozen values that every face is drawn from. It changes nothing of it."""

from typing import Final, NamedTuple

from gpucommons.model.sharing import ClientSharing, GpuSharing, WaitReading
from gpucommons.scheduler.policy.policy import Block, Policy
from gpucommons.scheduler.policy.quotas import ClientLimits
from gpucommons.scheduler.policy.settings import Mode
from gpucommons.scheduler.policy.state import NEVER, Client, ClientStanding, GpuQueue


class Ahead(NamedTuple):
    """How many stand before a client in its queue, who is the last of them, and when that one's turn is expected."""

    number: int
    last: Client | None
    last_expected_s: float | None


NOBODY_AHEAD: Final = Ahead(0, None, None)


def client_name(client_id: int) -> str:
    return f"{client_id:016x}"


def read_client(policy: Policy, client: Client, limits: ClientLimits, ahead: Ahead, now: float) -> ClientSharing:
    """One row."""
    gpu = client.gpu
    bucket = client.bucket
    running = client.standing is ClientStanding.RUNNING
    effective = 1.0 if bucket is None else bucket.rate
    return ClientSharing(
        client_id=client_name(client.id),
        pod=client.pod,
        namespace=client.namespace,
        gpu_uuid=gpu.key,
        gpu_index=gpu.index,
        protocol_version=client.version,
        pid=client.pid,
        uid=client.uid,
        gid=client.gid,
        standing=client.standing.value,
        revoked=client.revoked,
        pending_drop=client.drop_s is not None,
        connected_s=now - client.registered_s,
        turn_s=now - client.turn_s if running else None,
        turns=client.turns,
        wait=_read_wait(policy, client, ahead, now),
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
        demand_ratio=None if client.demand_milli is None else client.demand_milli / 1000,
    )


def _window_usage_s(client: Client, running: bool) -> float:
    clock = client.gpu.clock
    closed = client.billed_s - client.window_base_s if client.window_end_s == clock.window_end_s else 0.0
    return closed + (clock.billed_s - max(client.turn_mark_s, clock.window_billed_s) if running else 0.0)


def _read_wait(policy: Policy, client: Client, ahead: Ahead, now: float) -> WaitReading | None:
    if client.standing is not ClientStanding.WAITING and client.standing is not ClientStanding.THROTTLED:
        return None
    gpu = client.gpu
    why = policy.why_waiting(client, now)
    return WaitReading(
        why="ready" if why is None else why.value,
        waited_s=now - client.wait_s,
        ahead=ahead.number,
        room_bytes=max(0, gpu.safe_limit_bytes - gpu.running_bytes - gpu.held_bytes),
        expected_s=_expected_wait_s(policy, client, why, ahead, now),
    )


def _expected_wait_s(policy: Policy, client: Client, why: Block | None, ahead: Ahead, now: float) -> float | None:
    """An estimate: the turn in the way of the first ends with its quantum, and so does that of each one ahead."""
    gpu = client.gpu
    if client.standing is ClientStanding.THROTTLED:
        return None if client.bucket is None else max(0.0, client.bucket.refilled_s() - now)
    if why is None:
        return 0.0
    if ahead.last is not None:
        before_s = ahead.last_expected_s
        return None if before_s is None else before_s + policy.quantum_s(ahead.last, client, why)
    holder = next(iter(gpu.running.values()), None)
    return None if holder is None else max(0.0, holder.turn_s + policy.quantum_s(holder, client, why) - now)


def read_gpu(policy: Policy, gpu: GpuQueue, present: bool, now: float) -> GpuSharing:
    while gpu.count_some():
        pass
    queued = [*gpu.waiting.values(), *gpu.throttled.values()]
    way, reason = _way(policy, gpu, now)
    return GpuSharing(
        uuid=gpu.key,
        index=gpu.index,
        present=present,
        running=tuple(map(client_name, gpu.running)),
        request_queue=tuple(client_name(client.id) for client in queued if not client.told_to_wait),
        wait_queue=tuple(client_name(client.id) for client in queued if client.told_to_wait),
        running_memory_bytes=gpu.running_bytes,
        running_memory_peak_bytes=gpu.peak_running_bytes,
        total_memory_bytes=gpu.total_bytes,
        total_memory_measured=gpu.total_known,
        safe_limit_bytes=gpu.safe_limit_bytes,
        overloaded=gpu.overloaded,
        way=way,
        way_reason=reason,
        quantum_left_s=_quantum_left_s(policy, gpu, now),
        busy_seconds=gpu.clock.busy_s,
        drop_lock={reason.value: count for reason, count in gpu.drops.items()},
        wait_for_mem=gpu.wait_for_mem,
        mem_available=gpu.mem_available,
        wait_seconds=gpu.turns_wait.reading(),
        turn_seconds=gpu.turns_length.reading(),
        drain_seconds=gpu.turns_drain.reading(),
    )


def _way(policy: Policy, gpu: GpuQueue, now: float) -> tuple[str, str]:
    """How the clients share this GPU now, and why: two short constants."""
    if not policy.on:
        return "free", "scheduler_off"
    if len(gpu.running) + len(gpu.waiting) <= 1:
        return "alone", "no_contention"
    if gpu.overloaded:
        return "turns", "memory_overload"
    front = next(iter(gpu.waiting.values()), None)
    why = None if front is None else policy.why_waiting(front, now)
    if why is Block.TURN:
        return "turns", "serial_mode" if policy.mode is Mode.SERIAL else "memory_unknown"
    if why is Block.MEMORY:
        return "turns", "memory"
    if why is Block.DEMAND:
        return "turns", "demand"
    if why is Block.SOLO:
        return "turns", "measuring_demand"
    if policy.mode is Mode.CONCURRENT:
        return "together", "concurrent_mode"
    return "together", "demand_fits" if policy.knows_demand(gpu, now) else "demand_unknown"


def _quantum_left_s(policy: Policy, gpu: GpuQueue, now: float) -> float | None:
    """Until the oldest turn may be ended; None while nobody waits for its room."""
    front = next(iter(gpu.waiting.values()), None)
    holder = next(iter(gpu.running.values()), None)
    why = None if front is None else policy.why_waiting(front, now)
    if front is None or holder is None or why is None or gpu.deadline_s == NEVER:
        return None
    return max(0.0, holder.turn_s + policy.quantum_s(holder, front, why) - now)
