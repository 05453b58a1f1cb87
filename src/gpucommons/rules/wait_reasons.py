"""Why a client waits and how a GPU is shared, as sentences: the only wording of both. Pure."""

from collections.abc import Mapping
from typing import Final

from gpucommons.model.sharing import ClientSharing, GpuSharing, WaitReason

_SHARING: Final[Mapping[str, str]] = {
    "scheduler_off": "unscheduled: the scheduler is off",
    "no_contention": "no contention",
    "memory_overload": "one at a time: the running clients outgrew the memory",
    "serial_mode": "one at a time: serial mode",
    "memory_unknown": "one at a time: v1 clients do not report their memory",
    "memory": "in turns: the clients do not all fit in memory",
    "demand": "in turns: together the clients need more than the GPU has",
    "measuring_demand": "one at a time for a moment: a client is measured",
    "concurrent_mode": "together: concurrent mode",
    "demand_fits": "together: the GPU can serve all clients at once",
    "together_default": "together: nothing speaks for turns so far",
    "turns_no_gain": "together: turns would not be faster",
    "turns_gain": "in turns: together the clients would be slower, as measured",
    "owner_turns": "owners in turns: together, an owner would get less than its share",
    "linked": "in one queue with another GPU: a program uses both",
    "call_hangs": "together: the driver does not return from a call for one of the programs",
    "measuring": "one at a time for a moment: a client is measured",
    "demand_unknown": "together: the clients fit in memory, and the GPU's utilisation is not known",
}


def wait_sentence(client: ClientSharing) -> str:
    """Why this client waits; empty if it does not. It follows 'waits 5 s: '."""
    if client.wait is None:
        return ""
    reason = client.wait.reason
    if reason is WaitReason.QUOTA:
        return f"core quota of {client.core_quota_effective_percent:.0f} % used up, debt {client.debt_s:.1f} s"
    if reason is WaitReason.TURN:
        return "another client has the turn"
    if reason is WaitReason.MEMORY:
        return f"needs {gibibytes(client.need_bytes or 0)} of memory, {gibibytes(client.wait.room_bytes)} free"
    if reason is WaitReason.DEMAND:
        return "another client has the turn: together they would be slower"
    if reason is WaitReason.FAIRNESS:
        return "another owner has the turn: together, an owner would get less than its share"
    if reason is WaitReason.SOLO and client.demand_ratio is None:
        return "must run alone first, to be measured"
    if reason is WaitReason.SOLO:
        return "measuring a client that runs alone"
    return "about to run"


def sharing_sentence(way_reason: str) -> str:
    """How a GPU's clients share it now, and why."""
    return _SHARING.get(way_reason, way_reason)


def gain_sentence(gpu: GpuSharing) -> str:
    """What sharing is worth on this GPU, and how well it is known; empty where there is nothing to say."""
    parts = []
    # Together, the driver's time-slicing is what happens.
    if gpu.gain_ratio is not None and gpu.gain_ratio != 1.0:
        percent = 100 * (gpu.gain_ratio - 1)
        parts.append(f"gain over the driver's time-slicing {percent:+.0f} % (estimate)")
    if gpu.coarse:
        parts.append("SM activity (GPM) cannot be read: turns are taken for fairness only, not for a gain")
    return "; ".join(parts)


def gibibytes(amount_bytes: int) -> str:
    return f"{amount_bytes / (1 << 30):.1f} GiB"
