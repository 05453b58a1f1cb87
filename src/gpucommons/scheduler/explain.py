"""Why a client waits and about how long, in plain words. Pure: from what the scheduler shows of itself."""

from typing import Final

from gpucommons.model.sharing import ClientSharing, GpuSharing, SharingReading, WaitReading

_GIB: Final = 1 << 30


def explain(reading: SharingReading, target: str) -> str | None:
    """One paragraph for each client that a client id, `namespace/pod` or pod means; None if there is none."""
    by_uuid = {gpu.uuid: gpu for gpu in reading.gpus}
    found = [client for client in reading.clients if target in _names(client)]
    return "\n".join(_paragraph(reading, client, by_uuid[client.gpu_uuid]) for client in found) if found else None


def _names(client: ClientSharing) -> tuple[str, str, str]:
    return client.client_id, f"{client.namespace}/{client.pod}", client.pod


def _paragraph(reading: SharingReading, client: ClientSharing, gpu: GpuSharing) -> str:
    who = f"{client.namespace}/{client.pod} (client {client.client_id}, pid {client.pid}) on {_gpu_name(gpu)}"
    if not reading.on:
        return f"{who}: the scheduler is off, so it runs free."
    sharing = f" {_way(gpu)}"
    if client.revoked:
        return f"{who}: its turn was revoked, for it ignored DROP_LOCK; what it holds still counts.{sharing}"
    if client.turn_s is not None:
        ending = " It was told to end its turn and has not released yet." if client.pending_drop else ""
        return f"{who}: runs, for {_seconds(client.turn_s)} now.{ending}{sharing}"
    if client.wait is None:
        return f"{who}: idle; it has not asked for a turn.{sharing}"
    return f"{who}: {_waiting(client, client.wait)}{sharing}"


def _waiting(client: ClientSharing, wait: WaitReading) -> str:
    why = {
        "memory": f"needs {_gib(client.need_bytes)}, {_gib(wait.room_bytes)} free under the safe limit",
        "quota": f"has used its {client.core_quota_effective_percent:.0f} % share and owes {_seconds(client.debt_s)}",
        "turn": "the GPU is held by another, one at a time",
        "demand": "together with what runs it would ask for more of the GPU than runs well together",
        "solo": "somebody runs alone for a moment, so that its demand can be measured",
        "ready": "it may run at once",
    }.get(wait.why, wait.why)
    ahead = f"{wait.ahead} ahead" if wait.ahead else "nobody ahead"
    when = "" if wait.expected_s is None else f"; next turn in about {_seconds(wait.expected_s)}"
    return f"waits since {_seconds(wait.waited_s)}: {why}; {ahead}{when}."


def _way(gpu: GpuSharing) -> str:
    return f"Clients there run in this way: {gpu.way} ({gpu.way_reason})." if gpu.way else ""


def _gpu_name(gpu: GpuSharing) -> str:
    return f"GPU {gpu.index}" if gpu.index is not None else f"GPU {gpu.uuid or '(unnamed)'}"


def _gib(amount: int | None) -> str:
    return "an unknown amount" if amount is None else f"{amount / _GIB:.1f} GiB"


def _seconds(length_s: float) -> str:
    return f"{length_s:.1f} s" if length_s < 10 else f"{length_s:.0f} s"
