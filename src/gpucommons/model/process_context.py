"""How a process was started, beyond what attribution needs: its command line, its sessions and its ancestors."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gpucommons.model.process_identity import ProcessKey


class ProcessContext(NamedTuple):
    """None or empty is unknown.

    `scope` is the innermost systemd unit in the process's cgroup path, login sessions (session-4.scope) and units of
    a user's own manager included. `session_id` is the POSIX session (setsid), in the agent's pid namespace.
    `ancestors` are those that it had when it was first seen on a GPU, its parent first.
    """

    command_line: tuple[str, ...] = ()
    scope: str | None = None
    session_id: int | None = None
    ancestors: tuple[ProcessKey, ...] = ()


@dataclass(frozen=True, slots=True)
class CommandLineReading:
    """The command lines of the processes on GPUs, each cut to a bounded length."""

    by_key: Mapping[ProcessKey, tuple[str, ...]] = field(default_factory=dict)
