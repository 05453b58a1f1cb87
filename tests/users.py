"""Commands as another user of the machine, and user namespaces. For tests that run as root."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from waiting import until

ROOT = 0
FIRST_SUBORDINATE = 700_000


def as_user(uid: int, *capabilities: str) -> list[str]:
    """What another user runs. Python may be installed below a home that only root may enter: hence DAC_READ_SEARCH."""
    given = ",".join(f"+{name}" for name in ("dac_read_search", *capabilities))
    caps = () if uid == ROOT else (f"--inh-caps={given}", f"--ambient-caps={given}")
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", *caps]


@contextmanager
def in_namespace(count: int, maker: int) -> Iterator[int]:
    """A process in a user namespace that `maker` has made, with this many uids; its pid."""
    inside = subprocess.Popen(["setpriv", f"--reuid={maker}", "--clear-groups", "unshare", "--user", "sleep", "60"])
    try:
        own = os.readlink("/proc/self/ns/user")
        until(lambda: os.readlink(f"/proc/{inside.pid}/ns/user") != own, "it is in a namespace of its own")
        until(lambda: Path(f"/proc/{inside.pid}/cmdline").read_bytes().startswith(b"sleep"), "the program runs")
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{inside.pid}/{name}").write_text(f"0 {FIRST_SUBORDINATE} {count}")
        yield inside.pid
    finally:
        inside.kill()
        inside.wait(10)
