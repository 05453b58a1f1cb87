"""Why a client waits, how a GPU is shared, and why a program is parked, as sentences: the only wording. Pure."""

import time
from collections.abc import Iterable, Mapping
from typing import Final

from gpucommons.base.periods import spoken_age
from gpucommons.base.text import gibibytes
from gpucommons.model.sharing import (
    ARRIVAL,
    ASKED,
    BACKGROUND,
    EARLIER_AGENT,
    IDLE,
    TURN,
    ArrivalReading,
    ClientSharing,
    GpuSharing,
    ParkedFor,
    ParkedReading,
    WaitReason,
)
from gpucommons.model.words import SharingClass

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
    "class_precedence": "programs of class background wait while another program uses the GPU",
    "linked": "it shares a queue with another GPU, because one program uses both",
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
    if reason is WaitReason.BACKGROUND:
        return "it is of class background, and another program uses the GPU"
    if reason is WaitReason.SOLO and client.demand_ratio is None:
        return "must run alone first, to be measured"
    if reason is WaitReason.SOLO:
        return "measuring a client that runs alone"
    return "about to run"


def class_sentence(client: ClientSharing) -> str:
    """What the class of a client means now; empty for batch. It follows its name."""
    if client.sharing_class is SharingClass.BACKGROUND:
        return "class background: it runs while no other program uses the GPU"
    if client.sharing_class is SharingClass.BATCH:
        return ""
    if client.holds_back:
        return "class latency: it is never paused, and others are held back while it works"
    return "class latency, counts as batch for now: its owner has had more than its share of the last minute"


def standing_sentence(client: ClientSharing) -> str:
    """What a client does now: it runs, waits and why, or takes no turns."""
    if client.revoked:
        return "turn revoked"
    if client.turn_s is not None:
        return f"running for {spoken_age(client.turn_s)}" + (
            ", asked to release the GPU" if client.pending_drop else ""
        )
    if client.held_up:
        return client.held_up
    if client.wait is None:
        return client.standing
    ahead = f", {client.wait.ahead} ahead" if client.wait.ahead else ""
    return f"waits {spoken_age(client.wait.waited_s)}: {wait_sentence(client)}{ahead}"


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


def memory_sentence(gpu: GpuSharing, clients: Iterable[ClientSharing]) -> str:
    """The memory on this GPU. That of a program stays while it is paused; that of a client of nvshare counts while it
    runs."""
    there = [client for client in clients if client.gpu_uuid == gpu.uuid]
    programs = [client.nvml_bytes or 0 for client in there if client.program is not None]
    held = [f"{gibibytes(sum(programs))} held by programs"] if programs else []
    if not programs or len(programs) < len(there):
        held.append(f"{gibibytes(gpu.running_memory_bytes)} running")
    return f"{', '.join(held)}, safe limit {gibibytes(gpu.safe_limit_bytes)}"


# Programs that are parked, and programs that waited for the room of parked ones.

_CAUSES: Final[Mapping[str, str]] = {
    IDLE: "because it was idle",
    ASKED: "by order",
    TURN: "for the turn of another program",
    EARLIER_AGENT: "by an earlier agent",
}
_WAKES: Final[Mapping[str, str]] = {
    TURN: "waits for its turn",
    BACKGROUND: "comes back when there is room",
}


def parked_sentence(program: ParkedReading) -> str:
    """`parked 14:02 to make room for dana's train.py; wakes when it is used`; empty while it is on its way."""
    if program.stage not in ("parking", "parked"):
        return ""
    at = time.strftime("%H:%M", time.localtime(program.since_wall_s))
    wakes = _WAKES.get(program.cause, "wakes when it is used")
    return f"parked {at} {park_cause(program.cause, program.made_for)}; {wakes}"


def park_cause(cause: str, newcomer: ParkedFor | None) -> str:
    """Why a program is parked: `because it was idle`, `to make room for dana's train.py`."""
    if cause == ARRIVAL:
        return "to make room for " + ("a new program" if newcomer is None else possessive(newcomer))
    if cause == BACKGROUND:
        other = "another program" if newcomer is None else possessive(newcomer)
        return f"to make room for {other}, since it is of class background"
    return _CAUSES.get(cause, cause)


def arrival_sentence(arrival: ArrivalReading) -> str:
    """`waited 6 s for room: 58.0 GiB of carol's idle notebook were parked`."""
    total = sum(program.bytes for program in arrival.parked)
    idle = "idle " if all(program.was_idle for program in arrival.parked) else ""
    what = f"{len(arrival.parked)} {idle}programs"
    if len(arrival.parked) == 1:
        what = possessive(arrival.parked[0], idle)
    parked = f": {gibibytes(total)} of {what}" if arrival.parked else ""
    if arrival.is_held:
        return f"waits for room on its GPU{f'{parked} is parked' if parked else ''}"
    if not arrival.parked:
        return f"started without more room: {arrival.why}"
    return f"waited {arrival.waited_s:.0f} s for room{parked} was parked"


def possessive(program: ParkedFor, state: str = "") -> str:
    """`dana's train.py`; the user is hidden from viewers who may not see it."""
    if not program.name:
        return f"another user's {state}program"
    return f"{program.user or 'another user'}'s {state}{program.name}"
