"""Programs that a test needs beyond pip. Missing: the test skips and says so; in CI that is a failure."""

import os
import shutil

import pytest


def needs_program(*names: str) -> None:
    """Skip, naming the programs, unless all are on the PATH. With CI=true a skip would hide a hole: fail."""
    missing = [name for name in names if shutil.which(name) is None]
    if not missing:
        return
    reason = f"needs {', '.join(missing)} (see scripts/install-test-programs)"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)
