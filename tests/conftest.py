"""Settings of all tests.

Property tests run without a deadline and without a limit on generation, for slow machines; each with 40 examples, or
as many as TEST_EXAMPLES says. An agent that a test starts has its API socket in a directory of this run, and
not where the commands of this machine look for it.

The first process of a machine is in session 0, and so are its children. The agent takes that for unknown, as the kernel
shows it where a session began outside of the pid namespace. A run in session 0 begins a session of its own, so that
processes that a test starts without one are one job, as they are in a terminal.
"""

import atexit
import os
import tempfile
import zlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "unhurried",
    deadline=None,
    max_examples=int(os.environ.get("TEST_EXAMPLES", "40")),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("unhurried")

_RUNTIME = tempfile.TemporaryDirectory(prefix="gpucommons-")
atexit.register(_RUNTIME.cleanup)
os.environ["RUNTIME_DIRECTORY"] = _RUNTIME.name

if os.getsid(0) == 0 and os.getpgrp() != os.getpid():
    os.setsid()

# Tests that wait for real processes. They begin first; the others fill the gaps at the end.
_WAITING = frozenset(
    {"agent", "cli", "deploy", "leases", "page", "parking", "pauser", "scheduler", "simulation", "stack"}
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    root = Path(__file__).parent

    def place(item: pytest.Item) -> tuple[bool, int]:
        # Files that lie together load the machine in the same way: they are spread.
        path = item.path.relative_to(root)
        return path.parts[0] not in _WAITING, zlib.crc32(bytes(path))

    items.sort(key=place)
