"""Settings of all tests.

Property tests run without a deadline and without a limit on generation, for slow machines; each with 40 examples, or
as many as TEST_EXAMPLES says. An agent that a test starts has its API socket in a directory of this run, and
not where the commands of this machine look for it.

The first process of a machine is in session 0, and so are its children. The agent takes that for unknown, as the kernel
shows it where a session began outside of the pid namespace. A run in session 0 begins a session of its own, so that
processes that a test starts without one are one job, as they are in a terminal.

A shell without job control lets its background jobs ignore SIGINT, and so would every command that a test interrupts.
"""

import atexit
import os
import signal
import tempfile

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

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
