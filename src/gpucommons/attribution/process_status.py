"""The two lines of /proc/PID/status that attribution needs. No text raises an exception."""

import re
from typing import NamedTuple

# The kernel escapes newlines in the name, on the first line: a name cannot forge another line.
_UID = re.compile(r"^Uid:\s+([0-9]{1,10})\b", re.MULTILINE | re.ASCII)
_NSPID = re.compile(r"^NSpid:((?:[ \t]+[0-9]{1,10})+)", re.MULTILINE | re.ASCII)


class ProcessStatus(NamedTuple):
    """The real uid, and the pids from the namespace of this procfs down to that of the process."""

    uid: int | None
    namespaced_pids: tuple[int, ...]


def parse_status(text: str) -> ProcessStatus:
    uid, pids = _UID.search(text), _NSPID.search(text)
    return ProcessStatus(
        int(uid[1]) if uid else None,
        tuple(map(int, pids[1].split())) if pids else (),
    )
