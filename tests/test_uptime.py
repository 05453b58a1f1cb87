"""Nothing depends on the uptime: what reads the clock is tested again with a short and a long uptime."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from clocks import run_with_uptime
from needs import needs_time_namespaces

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[1]
DAY_S = 86_400
# Tests of what reads the real clock. The pure cores have the clock of their tests, whatever the uptime is.
CLOCK_USERS = (
    "agent/test_accounts_part.py",
    "attribution/test_stage.py",
    "holding/test_allocations.py",
    "idle/test_outbox.py",
    "leases/test_server.py",
    "pauser/test_pauses.py",
    "sampling",
    "scheduler/test_control_socket.py",
    "scheduler/test_server.py",
    "sources/ds01/test_events.py",
    "sources/host/test_processes.py",
    "sources/people/test_user_names.py",
    "web/routes/test_app.py",
)
UPTIMES_S = (30, 400 * DAY_S)


def run_clock_users(uptime_s: int) -> "subprocess.CompletedProcess[str]":
    files = [str(ROOT / "tests" / name) for name in CLOCK_USERS]
    # Few examples: they run for all of their inputs elsewhere.
    few = ("env", "TEST_EXAMPLES=10")
    return run_with_uptime(uptime_s, [*few, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files])


def test_what_reads_the_clock_works_whatever_the_uptime() -> None:
    needs_time_namespaces()
    for uptime_s in UPTIMES_S:
        shown = run_with_uptime(uptime_s, [sys.executable, "-c", "import time; print(time.monotonic())"])
        assert uptime_s <= float(shown.stdout) < uptime_s + 3600, shown.stdout
    with ThreadPoolExecutor() as both:
        for uptime_s, ran in zip(UPTIMES_S, both.map(run_clock_users, UPTIMES_S), strict=True):
            assert ran.returncode == 0, f"up for {uptime_s} s:\n{ran.stdout}"
