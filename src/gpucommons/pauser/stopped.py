"""Whether a process is stopped: by a signal, a debugger, the freezer of its cgroup, or a core dump being written.

The driver's calls on a stopped process do not return before it is continued, whatever their timeout: the driver asks a
thread of the process itself. One thread that a debugger holds is enough. So this is looked at before each call, and
again while a call takes long.

Frozen cgroups are found through the mounted cgroup file systems. Inside a container with a cgroup namespace of its own
the cgroups of other containers are out of sight; a call for one of them is then noticed because it takes long.
"""

import os
from functools import cache
from pathlib import Path
from typing import Final

from gpucommons.base import processes
from gpucommons.base.cgroup_paths import read_cgroups
from gpucommons.base.text import lines_of

STOPPED: Final = "stopped by its user"
_STOPPED_LETTERS: Final = ("T", "t")
_TRACED_LETTER: Final = "t"
# Bounds the work for a process with thousands of threads: a debugger holds the first ones, too.
_MAX_THREADS: Final = 512
_READ_BYTES: Final = 4096


class FreezerMounts:
    """Where the freezers are mounted: that of cgroup v2, and that of v1, which a machine may have as well."""

    def __init__(self, mounts: Path = Path("/proc/self/mounts")) -> None:
        self.v2: Path | None = None
        self.v1: Path | None = None
        try:
            lines = lines_of(mounts.read_bytes().decode("utf-8", "replace"))
        except OSError:
            return
        for fields in map(str.split, lines):
            if len(fields) > 3 and fields[2] == "cgroup2" and self.v2 is None:
                self.v2 = Path(fields[1])
            elif len(fields) > 3 and fields[2] == "cgroup" and "freezer" in fields[3].split(","):
                self.v1 = Path(fields[1])

    def is_frozen(self, pid: int) -> bool:
        try:
            cgroups = read_cgroups(pid)
        except OSError:
            return False
        for controllers, path in cgroups:
            if path == "/" or ".." in path.split("/"):
                continue
            if not controllers and self.v2 is not None:
                frozen = b"frozen 1" in _read(f"{self.v2}{path}/cgroup.events")
            elif "freezer" in controllers.split(",") and self.v1 is not None:
                # FREEZING: some of its threads are stopped already.
                frozen = _read(f"{self.v1}{path}/freezer.state").strip() in (b"FROZEN", b"FREEZING")
            else:
                frozen = False
            if frozen:
                return True
        return False


@cache
def _mounts() -> FreezerMounts:
    return FreezerMounts()


def why_stopped(pid: int, *, every_thread: bool = True) -> str:
    """What stops the process, in a few words; empty where it runs, has ended or cannot be seen.

    Without `every_thread` a debugger that holds only some threads is not noticed: 20 microseconds instead of 400.
    """
    leader = _letter(f"/proc/{pid}/stat")
    if leader in _STOPPED_LETTERS:
        return "a debugger holds it" if leader == _TRACED_LETTER else "a stop signal, such as Ctrl-Z"
    if b"\nCoreDumping:\t1" in _read(f"/proc/{pid}/status"):
        return "its core dump is being written"
    if _mounts().is_frozen(pid):
        return "its cgroup is frozen"
    if every_thread and any(_letter(f"/proc/{pid}/task/{thread}/stat") in _STOPPED_LETTERS for thread in _threads(pid)):
        return "a debugger holds one of its threads"
    return ""


def _threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")[:_MAX_THREADS]
    except OSError:
        return []


def _letter(path: str) -> str:
    stat = _read(path)
    return processes.state_letter(stat) if stat else ""


def _read(path: str) -> bytes:
    """Empty where there is no such file, or it may not be read."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(file, _READ_BYTES)
    except OSError:
        return b""
    finally:
        os.close(file)
