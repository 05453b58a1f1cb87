"""How a process was started, beyond what attribution needs: its command line, login session and POSIX session."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProcessContext:
    """None or empty is unknown.

    `scope` is the innermost systemd unit in the process's cgroup path, login sessions (session-4.scope) and units of
    a user's own manager included. `session_id` is the POSIX session (setsid), in the agent's pid namespace.
    """

    command_line: tuple[str, ...] = ()
    scope: str | None = None
    session_id: int | None = None
