"""Nothing depends on how long the machine has been up: what decides is tested again soon and long after a boot."""

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
    "model/test_busiest.py",
    "model/test_event_window.py",
    "model/test_health.py",
    "sampling",
    "scheduler/test_control.py",
    "scheduler/test_policy.py",
    "scheduler/test_quotas.py",
    "scheduler/test_server.py",
    "scheduler/test_small_parts.py",
    "sources/test_background.py",
    "sources/test_backoff.py",
    "sources/test_events.py",
    "sources/test_processes.py",
    "sources/test_user_names.py",
    "web/test_app.py",
    "web/test_history.py",
    "web/test_page.py",
    "web/test_rate_limit.py",
    "web/test_turn_log.py",
)


UPTIMES_S = (30, 400 * DAY_S)


def run_cores(uptime_s: int) -> "subprocess.CompletedProcess[str]":
    files = [str(ROOT / "tests" / name) for name in CLOCK_USERS]
    return run_with_uptime(uptime_s, [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files])


def test_the_cores_pass_whatever_the_uptime() -> None:
    needs_time_namespaces()
    for uptime_s in UPTIMES_S:
        shown = run_with_uptime(uptime_s, [sys.executable, "-c", "import time; print(time.monotonic())"])
        assert uptime_s <= float(shown.stdout) < uptime_s + 3600, shown.stdout
    with ThreadPoolExecutor() as both:
        for uptime_s, ran in zip(UPTIMES_S, both.map(run_cores, UPTIMES_S), strict=True):
            assert ran.returncode == 0, f"up for {uptime_s} s:\n{ran.stdout}"
