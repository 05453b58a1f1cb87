"""Signals from `gpucommons top` to a process: only to one's own, only on this machine, never to a reused pid."""

import os
import signal
from collections.abc import Mapping
from typing import Any

from gpucommons.base.processes import start_ticks
from gpucommons.base.text import parse_decimal


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


def _start_ticks(pid: int) -> int:
    with open(f"/proc/{pid}/stat", "rb") as file:
        return start_ticks(file.read())
