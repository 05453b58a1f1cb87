"""The cores do not depend on the uptime: their tests run again with a short and a long uptime."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from clocks import run_with_uptime
from needs import needs_time_namespaces

ROOT = Path(__file__).parents[1]
DAY_S = 86_400
# Tests that read the real monotonic clock, and the pure cores whose clock a test sets.
CLOCK_USERS = (
    "agent/test_accounts_part.py",
    "agent/test_busy.py",
    "holding/test_allocations.py",
    "attribution/test_stage.py",
    "ledger/test_integrate.py",
    "ledger/test_usage.py",
    "rules/test_busiest.py",
    "sources/ds01/test_window.py",
    "rules/test_node_health.py",
    "sampling",
    "scheduler/test_control_socket.py",
    "scheduler/test_policy.py",
    "scheduler/test_quotas.py",
    "scheduler/test_server.py",
    "scheduler/test_small_parts.py",
    "sources/test_background.py",
    "base/test_backoff.py",
    "sources/ds01/test_events.py",
    "sources/host/test_processes.py",
    "sources/people/test_user_names.py",
    "web/routes/test_app.py",
    "faces/history/test_history.py",
    "web/routes/test_plain_page.py",
    "web/access/test_rate_limit.py",
    "faces/history/test_turn_log.py",
)


UPTIMES_S = (30, 400 * DAY_S)


def run_cores(uptime_s: int) -> "subprocess.CompletedProcess[str]":
    files = [str(ROOT / "tests" / name) for name in CLOCK_USERS]
    # Few examples: they run for all of their inputs elsewhere.
    few = ("env", "TEST_EXAMPLES=10")
    return run_with_uptime(uptime_s, [*few, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files])


def test_the_cores_pass_whatever_the_uptime() -> None:
    needs_time_namespaces()
    for uptime_s in UPTIMES_S:
        shown = run_with_uptime(uptime_s, [sys.executable, "-c", "import time; print(time.monotonic())"])
        assert uptime_s <= float(shown.stdout) < uptime_s + 3600, shown.stdout
    with ThreadPoolExecutor() as both:
        for uptime_s, ran in zip(UPTIMES_S, both.map(run_cores, UPTIMES_S), strict=True):
            assert ran.returncode == 0, f"up for {uptime_s} s:\n{ran.stdout}"
