"""Settings of all tests.

Property tests run without a deadline and without a limit on generation, for slow machines; each with 25 examples, the
same in each run. With TEST_RANDOM they are random, and 40 or as many as TEST_EXAMPLES says: `make test` repeats,
`make test-all` and `make torture` search. An agent that a test starts has its API socket in a directory of this run,
and not where the commands of this machine look for it.

The first process of a machine is in session 0, and so are its children. The agent takes that for unknown, as the kernel
shows it where a session began outside of the pid namespace. A run in session 0 begins a session of its own, so that
processes that a test starts without one are one job, as they are in a terminal.

A shell without job control lets its background jobs ignore SIGINT, and so would every command that a test interrupts.

Bytecode is kept, as in the Makefile: without it each of hundreds of processes compiles what it imports.

What is set for another agent does not reach the agents of the tests, and the programs that they start speak English.

Collected tests live until the end. The garbage collector does not walk them: neither while they are collected, in each
of the processes, nor in each of its full rounds afterwards.
"""

import atexit
import gc
import os
import signal
import sys
import tempfile
from collections.abc import Generator

import pytest

from unhurried import load_examples

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

load_examples()

# Settings of the agent that runs on this machine, or of a shell in a pod or in a unit.
_OF_THE_MACHINE = ("GPUCOMMONS_", "NVSHARE_", "XPUSHARE_", "KUBERNETES_", "CUDA_", "NOTIFY_SOCKET")
_ALSO = ("STATE_DIRECTORY", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "NODE_NAME", "GRAFANA_ADMIN_PASSWORD")
for _name in [name for name in os.environ if name.startswith(_OF_THE_MACHINE) or name in _ALSO]:
    del os.environ[_name]
# Messages of programs are compared.
os.environ.pop("LANGUAGE", None)
os.environ["LC_ALL"] = "C.UTF-8"

_RUNTIME = tempfile.TemporaryDirectory(prefix="gpucommons-")
atexit.register(_RUNTIME.cleanup)
os.environ["RUNTIME_DIRECTORY"] = _RUNTIME.name

if os.getsid(0) == 0 and os.getpgrp() != os.getpid():
    os.setsid()

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
