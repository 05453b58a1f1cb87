"""Orders from `gpucommons top` to the scheduler of this machine: park a program, or wake it.

The agent decides whether this user may: owners for their own programs, admins for all.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpucommons.cli.command_line import CommandError
from gpucommons.cli.scheduler import send

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
