"""What `gpucommons scheduler status` shows: pure text from the scheduler's answer.

Names come from clients and may hold anything: what is not printable is shown escaped, never sent to a terminal.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_GIB = 1 << 30


def render(answer: Mapping[str, Any]) -> str:
    lines = [f"scheduler {'on' if answer['on'] else 'OFF: every client runs free'}, mode {answer['mode']}"]
    clients = answer["clients"]
    for gpu in answer["gpus"]:
        lines += ["", *_gpu(gpu, [client for client in clients if client["gpu_uuid"] == gpu["uuid"]])]
    return "\n".join(lines)


def _gpu(gpu: Mapping[str, Any], clients: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    name = f"GPU {gpu['index']}" if gpu["index"] is not None else "GPU (unnamed)"
    guessed = "" if gpu["total_memory_measured"] else " (a guess: NVML does not tell)"
    left = "" if gpu["quantum_left_s"] is None else f", quantum ends in {gpu['quantum_left_s']:.1f} s"
    overload = ", OVERLOADED" if gpu["overloaded"] else ""
    yield (
        f"{name} {_safe(gpu['uuid'])}  {_gib(gpu['running_memory_bytes'])} of {_gib(gpu['safe_limit_bytes'])}"
        f" promised{guessed}{left}{overload}"
    )
    if gpu["way"]:
        yield f"  {gpu['way']}: {gpu['way_reason']}"
    if not clients:
        yield "  no client"
        return
    rows = [("CLIENT", "POD", "PID", "STATE", "WHY", "NEED", "CORE", "FOR"), *(_row(client) for client in clients)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _row(client: Mapping[str, Any]) -> tuple[str, ...]:
    wait = client["wait"]
    if client["turn_s"] is not None:
        state, why, length_s = "running", "told to stop" if client["pending_drop"] else "", client["turn_s"]
    elif wait is not None:
        state, why, length_s = "waiting", wait["why"], wait["waited_s"]
    else:
        state, why, length_s = "revoked" if client["revoked"] else "idle", "", None
    need = client["need_bytes"]
    return (
        client["client_id"],
        _safe(f"{client['namespace']}/{client['pod']}"),
        str(client["pid"]),
        state,
        why,
        "-" if need is None else _gib(need),
        f"{client['core_quota_effective_percent']:.0f}%",
        "-" if length_s is None else f"{length_s:.1f} s",
    )


def _safe(name: str) -> str:
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in name)


def _gib(amount: int) -> str:
    return f"{amount / _GIB:.1f} GiB"
