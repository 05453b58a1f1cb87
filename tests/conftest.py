"""Settings of all tests.

Property tests run without a deadline and without a limit on generation, for slow machines. An agent that a test
starts has its API socket in a directory of this run, and not where the commands of this machine look for it.
"""

import atexit
import os
import tempfile

from hypothesis import HealthCheck, settings

settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

_RUNTIME = tempfile.TemporaryDirectory(prefix="gpucommons-")
atexit.register(_RUNTIME.cleanup)
os.environ["RUNTIME_DIRECTORY"] = _RUNTIME.name
