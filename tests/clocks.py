"""Programs with another uptime: a time namespace in which the machine booted at the given time."""

import subprocess
import time
from collections.abc import Mapping, Sequence


def run_with_uptime(
    uptime_s: int, command: Sequence[str], environment: Mapping[str, str] | None = None, timeout_s: float = 300
) -> "subprocess.CompletedProcess[str]":
    """Runs a command whose monotonic and boot-time clocks begin at `uptime_s`. Only a forked process gets them."""
    offsets = (
        f"--monotonic={uptime_s - int(time.clock_gettime(time.CLOCK_MONOTONIC))}",
        f"--boottime={uptime_s - int(time.clock_gettime(time.CLOCK_BOOTTIME))}",
    )
    return subprocess.run(
        ["unshare", "--time", "--fork", "--kill-child", *offsets, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        timeout=timeout_s,
    )
