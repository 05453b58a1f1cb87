"""The agent's own CPU time, memory, descriptors and threads."""

import os
import threading
import time
from collections.abc import Callable

from gpucommons.model.snapshot import AgentReading

_RSS_FIELD = 1
_STATM_BYTES = 256


class AgentReader:
    """`complete` adds what other parts of the agent count: requests, refused connections, dropped series."""

    def __init__(
        self,
        version: str,
        complete: Callable[[AgentReading], AgentReading] = lambda own: own,
    ) -> None:
        self._version = version
        self._complete = complete
        self._started_wall_s = time.time()

    def read(self) -> AgentReading:
        return self._complete(
            AgentReading(
                version=self._version,
                started_wall_s=self._started_wall_s,
                cpu_seconds=time.process_time(),
                rss_bytes=own_rss_bytes(),
                open_descriptors=_own_descriptors(),
                threads=threading.active_count(),
            )
        )


# This container's /proc, not the host's at --path.procfs: "self" is valid only in our own pid namespace.
def own_rss_bytes() -> int | None:
    try:
        descriptor = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        try:
            pages = int(os.read(descriptor, _STATM_BYTES).split()[_RSS_FIELD])
        finally:
            os.close(descriptor)
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def _own_descriptors() -> int | None:
    """Since Linux 6.2 their number is the size of the directory; before it was 0."""
    try:
        return os.stat("/proc/self/fd").st_size or len(os.listdir("/proc/self/fd")) - 1
    except OSError:
        return None
