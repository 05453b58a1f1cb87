"""Orders from `gpucommons top`: to the scheduler of this machine, and signals to one's own processes."""

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpucommons.base.processes import start_ticks
from gpucommons.base.text import parse_decimal
from gpucommons.cli.command_line import CommandError
from gpucommons.cli.scheduler import send

# Orders from `gpucommons top` to the scheduler of this machine: park a program, or wake it.
#
# The agent decides whether this user may: owners for their own programs, admins for all.

QUESTIONS = {
    "park": "Park {}: its GPU memory goes to host memory, and it sleeps in its next CUDA call until it is woken?",
    "wake": "Wake {}: its memory comes back to the GPU?",
}
_DONE = {"park": "parking", "wake": "waking"}


def target_pid(node: Mapping[str, Any], key: str) -> int | None:
    """The pid that a row stands for: of a process, or of a parked program, which no longer is on a GPU."""
    who, turns = node["who"], node["turns"]
    if who is not None and key in who["processes"]:
        return int(who["processes"][key]["pid"])
    parked = turns["parking"]["programs"] if turns is not None and turns["parking"] is not None else {}
    processes = parked[key]["processes"] if key in parked else []
    return int(processes[0]) if processes else None


def carry_out(order: str, pid: int, config: Path | None) -> tuple[str, bool]:
    """What the agent says, and whether it does what was ordered. Blocks until the agent has answered."""
    try:
        answer = send(config, None, {"command": order, "target": str(pid)})
    except CommandError as error:
        return str(error), False
    if answer["refused"]:
        return "; ".join(answer["refused"]), False
    return f"{_DONE[order]} {', '.join(answer['names']) or f'pid {pid}'}", True


# Signals from `gpucommons top` to a process: only to one's own, only on this machine, never to a reused pid.


def refusal(row: Mapping[str, Any], key: str) -> str:
    """Why this user may not signal the process of this row; empty if it may. `key` is GPU, pid and start time."""
    if os.geteuid() not in (0, row["uid"]):
        return f"pid {row['pid']} belongs to {row['account'] or 'another user'}: only its user or root may do that"
    if parse_decimal(key.rpartition("/")[2]) is None:
        return f"pid {row['pid']} has ended"
    return ""


def send_signal(key: str, number: signal.Signals) -> str:
    """Why it was not sent; empty if it was. The handle of the process is opened before its start time is checked."""
    _, pid_text, start_text = key.rsplit("/", 2)
    pid = int(pid_text)
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return f"pid {pid} has ended"
    except OSError as error:
        return f"pid {pid}: {error.strerror}"
    try:
        if _start_ticks(pid) != int(start_text):
            return f"pid {pid} has ended"
        signal.pidfd_send_signal(handle, number)
    except OSError as error:
        return f"pid {pid}: {error.strerror}"
    finally:
        os.close(handle)
    return ""


# The environment of one's own process: never that of another user, also not for root, since it may hold secrets.

_MAX_ENVIRONMENT_BYTES = 1 << 20


def environment_lines(row: Mapping[str, Any], key: str) -> list[str]:
    """NAME=VALUE, sorted, as the process was started with. Raises CommandError."""
    pid, start_ticks_of_row = row["pid"], parse_decimal(key.rpartition("/")[2])
    try:
        # A descriptor of the directory belongs to this process, also after its pid was used again.
        directory = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if os.geteuid() != row["uid"] or os.fstat(directory).st_uid != os.geteuid():
                raise CommandError(f"pid {pid} belongs to {row['account'] or 'another user'}: only its user sees that")
            if start_ticks(_read_at(directory, "stat")) != start_ticks_of_row:
                raise CommandError(f"pid {pid} has ended")
            environment = _read_at(directory, "environ")
        finally:
            os.close(directory)
    except (FileNotFoundError, ProcessLookupError):
        raise CommandError(f"pid {pid} has ended") from None
    except OSError as error:
        raise CommandError(f"the environment of pid {pid} cannot be read: {error.strerror}") from None
    return sorted(part.decode(errors="replace") for part in environment.split(b"\0") if part)


def _read_at(directory: int, name: str) -> bytes:
    with open(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory), "rb") as file:
        return file.read(_MAX_ENVIRONMENT_BYTES)


def _start_ticks(pid: int) -> int:
    with open(f"/proc/{pid}/stat", "rb") as file:
        return start_ticks(file.read())
