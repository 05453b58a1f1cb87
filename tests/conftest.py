"""Settings of all tests.

Property tests run without a deadline and without a limit on generation, for slow machines; each with 40 examples, or
as many as GPUCOMMONS_TEST_EXAMPLES says. An agent that a test starts has its API socket in a directory of this run, and
not where the commands of this machine look for it.
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
    max_examples=int(os.environ.get("GPUCOMMONS_TEST_EXAMPLES", "40")),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("unhurried")

_RUNTIME = tempfile.TemporaryDirectory(prefix="gpucommons-")
atexit.register(_RUNTIME.cleanup)
os.environ["RUNTIME_DIRECTORY"] = _RUNTIME.name

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
