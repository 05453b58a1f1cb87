"""Programs that a test needs beyond pip. Missing: the test skips and says so; in CI that is a failure."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def needs_program(*names: str) -> None:
    """Skip, naming the programs, unless all are on the PATH. With CI=true a skip would hide a hole: fail."""
    missing = [name for name in names if shutil.which(name) is None]
    if missing:
        _do_without(f"needs {', '.join(missing)} (see scripts/install-test-programs)")


def needs_root() -> None:
    """Skip unless we are root, who alone may start a container runtime. In CI: fail."""
    if os.geteuid() != 0:
        _do_without("needs to run as root")


def needs_time_namespaces() -> None:
    """Skip where the kernel has no time namespaces. Where it has them and we cannot make one: in CI fail."""
    if not Path("/proc/self/ns/time").exists():
        pytest.skip("needs a kernel with time namespaces (CONFIG_TIME_NS)")
    needs_root()
    needs_program("unshare")
    tried = subprocess.run(["unshare", "--time", "--fork", "true"], capture_output=True, text=True)
    if tried.returncode != 0:
        _do_without(f"needs to make time namespaces: {tried.stderr.strip()}")


def needs_device(path: str) -> None:
    """Skip unless the kernel has the device. In CI: fail."""
    if not os.path.exists(path):
        _do_without(f"needs the device {path}")


def _do_without(reason: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)
