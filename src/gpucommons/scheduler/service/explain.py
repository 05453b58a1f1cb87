"""The scheduler's state in plain words: why a client waits and about how long, and how each GPU is shared. Pure."""

from collections.abc import Iterator

from gpucommons.model.sharing import ClientSharing, GpuSharing, SharingReading, WaitReading
from gpucommons.scheduler.policy.gpu_names import DEFAULT_GPU

_WAYS = {
    "scheduler_off": "the scheduler is off: everybody runs",
    "no_contention": "nobody else wants it",
    "memory_overload": "one at a time: what ran outgrew the memory",
    "serial_mode": "one at a time: serial mode",
    "memory_unknown": "one at a time: v1 clients do not tell how much memory they need",
    "memory": "in turns: not all of them fit in its memory",
    "demand": "in turns: together they would ask too much of it",
    "measuring_demand": "one at a time for a moment: a client's demand is being measured",
    "concurrent_mode": "together: concurrent mode",
    "demand_fits": "together: it can serve them all at once",
    "demand_unknown": "together: they fit in its memory, and its utilisation is not known",
}


def explain_client(reading: SharingReading, client: ClientSharing) -> str:
    """One paragraph on one client."""
    who = f"{called(client)} on {_gpu_name(reading, client.gpu_uuid)}"
    if not reading.on:
        return f"{who} runs freely: the scheduler is off."
    if client.revoked:
        return f"{who} ignored the request to stop: its turn was revoked, and what memory it holds stays taken."
    if client.wait is not None:
        wait = client.wait
        return (
            f"{who} has been waiting for {seconds(wait.waited_s)}: {_why(client, wait)}{_place(wait)}; {_when(wait)}."
        )
    if client.turn_s is not None:
        told = ", and was asked to stop" if client.pending_drop else ""
        return f"{who} has been running for {seconds(client.turn_s)}{told}."
    return f"{who} asks for nothing at present."


def _why(client: ClientSharing, wait: WaitReading) -> str:
    if wait.why == "quota":
        return (
            f"its share of {client.core_quota_effective_percent:.0f} % is used up, "
            f"with a debt of {client.debt_s:.1f} s of GPU time"
        )
    if wait.why == "memory":
        return f"needs {gib(client.need_bytes or 0)}, {gib(wait.room_bytes)} free under the safe limit"
    if wait.why == "demand":
        return "together with what runs it would ask too much of the GPU, so they take turns"
    if wait.why == "solo" and client.demand_ratio is None:
        return "it has to run alone at first, so that its demand can be measured"
    if wait.why == "solo":
        return "a client runs alone for a moment, so that its demand can be measured"
    if wait.why == "turn":
        return "another client has its turn, and turns are taken one at a time here"
    return "it is about to run"


def _place(wait: WaitReading) -> str:
    return f"; {wait.ahead} ahead" if wait.why not in {"quota", "ready"} else ""


def _when(wait: WaitReading) -> str:
    if wait.expected_s is None:
        return "nobody can tell when its turn comes"
    return f"next turn in about {seconds(wait.expected_s)}"


def describe(reading: SharingReading) -> Iterator[str]:
    """The lines of a status report."""
    quantum = "" if reading.fixed_quantum_s is None else f", quantum {seconds(reading.fixed_quantum_s)}"
    yield f"scheduler {'on' if reading.on else 'OFF'}, mode {reading.mode}{quantum}, {len(reading.clients)} clients"
    clients = {client.client_id: client for client in reading.clients}
    for gpu in reading.gpus:
        yield from _describe_gpu(gpu, clients)


def _describe_gpu(gpu: GpuSharing, clients: dict[str, ClientSharing]) -> Iterator[str]:
    left = "" if gpu.quantum_left_s is None else f", turn ends in about {seconds(gpu.quantum_left_s)}"
    measured = "" if gpu.total_memory_measured else " (assumed)"
    yield f"{_title(gpu)}: {_WAYS.get(gpu.way_reason, gpu.way_reason)}{left}"
    yield f"  memory: {gib(gpu.running_memory_bytes)} running, safe limit {gib(gpu.safe_limit_bytes)}{measured}"
    for id in gpu.running:
        if id in clients:
            yield f"  running  {called(clients[id])} for {seconds(clients[id].turn_s or 0.0)}"
    for id in (*gpu.wait_queue, *gpu.request_queue):
        client = clients.get(id)
        if client is not None and client.wait is not None:
            yield f"  waiting  {called(client)} for {seconds(client.wait.waited_s)}: {_why(client, client.wait)}"


def called(client: ClientSharing) -> str:
    """Names come from clients and may hold anything: what is not printable is shown escaped."""
    name = f"{client.namespace}/{client.pod}"
    shown = "".join(char if char.isprintable() else repr(char)[1:-1] for char in name)
    return f"{shown} ({client.client_id})"


def _gpu_name(reading: SharingReading, uuid: str) -> str:
    return next((_title(gpu) for gpu in reading.gpus if gpu.uuid == uuid), uuid)


def _title(gpu: GpuSharing) -> str:
    if gpu.uuid == DEFAULT_GPU:
        return "GPU not known"
    return f"GPU {gpu.uuid}" if gpu.index is None else f"GPU {gpu.index} ({gpu.uuid})"


def gib(amount_bytes: int) -> str:
    return f"{amount_bytes / (1 << 30):.1f} GiB"


def seconds(length_s: float) -> str:
    if length_s < 10:
        return f"{length_s:.1f} s"
    if length_s < 180:
        return f"{length_s:.0f} s"
    return f"{length_s / 60:.0f} min"
