"""Programs that a test needs beyond pip. If one is missing, the test is skipped with a reason; in CI it fails."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def needs_program(*names: str) -> None:
    """Skips the test and names the programs unless all are on the PATH. Fails if CI=true."""
    missing = [name for name in names if shutil.which(name) is None]
    if missing:
        _do_without(f"needs {', '.join(missing)} (see scripts/install-test-programs)")


def needs_root() -> None:
    """Skips the test unless run as root, which container runtimes need. Fails in CI."""
    if os.geteuid() != 0:
        _do_without("needs to run as root")


def needs_time_namespaces() -> None:
    """Skips the test without time namespaces in the kernel. If they exist but cannot be created, fails in CI."""
    if not Path("/proc/self/ns/time").exists():
        pytest.skip("needs a kernel with time namespaces (CONFIG_TIME_NS)")
    needs_root()
    needs_program("unshare")
    tried = subprocess.run(["unshare", "--time", "--fork", "true"], capture_output=True, text=True)
    if tried.returncode != 0:
        _do_without(f"needs to make time namespaces: {tried.stderr.strip()}")


def needs_device(path: str) -> None:
    """Skips the test unless the device exists. Fails in CI."""
    if not os.path.exists(path):
        _do_without(f"needs the device {path}")


def needs_chosen_pids() -> None:
    """Skips the test unless it may choose the pid of the next process. Fails in CI."""
    needs_root()
    if not os.access("/proc/sys/kernel/ns_last_pid", os.W_OK):
        _do_without("needs to write /proc/sys/kernel/ns_last_pid")


def _do_without(reason: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)
