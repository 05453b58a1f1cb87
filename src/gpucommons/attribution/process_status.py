"""The two lines of /proc/PID/status that attribution needs. Any text is read; none raises."""

import re
from typing import NamedTuple

# The name stands in the first line and has its newlines escaped: no name can forge another line.
_UID = re.compile(r"^Uid:\s+([0-9]{1,10})\b", re.MULTILINE | re.ASCII)
_NSPID = re.compile(r"^NSpid:((?:[ \t]+[0-9]{1,10})+)", re.MULTILINE | re.ASCII)


class ProcessStatus(NamedTuple):
    """The real uid, and the pids from the namespace of the procfs that was read down to its own."""

    uid: int | None
    namespaced_pids: tuple[int, ...]


def parse_status(text: str) -> ProcessStatus:
    uid, pids = _UID.search(text), _NSPID.search(text)
    return ProcessStatus(
        int(uid[1]) if uid else None,
        tuple(map(int, pids[1].split())) if pids else (),
    )
