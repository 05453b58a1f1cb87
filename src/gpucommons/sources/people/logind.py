"""SSH sessions from systemd-logind's files, for hosts that no longer have utmp.

libsystemd reads the same files for its callers. Each session has a file of KEY=VALUE lines in run/systemd/sessions.
Pipes and links there are not opened.
"""

import os
import stat
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from gpucommons.base.text import parse_decimal

SESSIONS = "run/systemd/sessions"
_SSH_SERVICES = ("sshd", "ssh")
_MAX_SESSIONS = 10_000
_MAX_BYTES = 16 * 1024


def read_ssh_sessions(directory: Path, is_alive: Callable[[int], bool]) -> Mapping[str, int] | None:
    """Sessions by user; None without the directory. As with utmp, the first process of a session must be alive."""
    try:
        names = sorted(os.listdir(directory))[:_MAX_SESSIONS]
    except OSError:
        return None
    found = (parse_session(_text(directory / name)) for name in names)
    return dict(Counter(user for user, leader in filter(None, found) if is_alive(leader)))


def parse_session(text: str) -> tuple[str, int] | None:
    """The user of an SSH session and the pid of its first process; None for any other file."""
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    user, leader = values.get("USER", ""), values.get("LEADER", "")
    is_open = values.get("STATE", "") in ("active", "online", "opening")
    if values.get("SERVICE") not in _SSH_SERVICES or not is_open or not user:
        return None
    pid = parse_decimal(leader)
    return None if pid is None else (user, pid)


def _text(file: Path) -> str:
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        return os.read(descriptor, _MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)
