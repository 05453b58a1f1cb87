"""The start time in /proc/PID/stat: with the pid it identifies a process until the next reboot."""

from typing import Final

_START_TICKS: Final = 19


def start_ticks(stat: bytes) -> int:
    """The start time in a line of /proc/PID/stat. The name in parentheses before it may contain anything."""
    return int(stat[stat.rindex(b")") + 2 :].split()[_START_TICKS])
