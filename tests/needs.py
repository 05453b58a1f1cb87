"""Programs that a test needs beyond pip. Missing: the test skips and says so; in CI that is a failure."""

import os
import shutil

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


def needs_device(path: str) -> None:
    """Skip unless the kernel has the device. In CI: fail."""
    if not os.path.exists(path):
        _do_without(f"needs the device {path}")


def _do_without(reason: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)
