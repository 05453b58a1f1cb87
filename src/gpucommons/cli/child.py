"""Runs a command as a child: same user, terminal, signals and exit code."""

import ctypes
import errno
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

NOT_FOUND: Final = 127
NOT_EXECUTABLE: Final = 126
TIMED_OUT: Final = 124
# After SIGTERM, until SIGKILL.
_GRACE_S: Final = 30.0
_POLL_S: Final = 1.0
_SET_PARENT_DEATH_SIGNAL: Final = 1
# The kernel sent it, as for Ctrl-C: it went to all processes of the terminal, and the child has it.
_FROM_KERNEL: Final = 0x80
_FORWARDED: Final = (
    *(signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH),
)


def missing_status(command: str) -> int | None:
    """The exit status of a command that cannot be run, as in a shell; None if it can."""
    if shutil.which(command) is not None:
        return None
    named = [command] if "/" in command else [os.path.join(d, command) for d in os.get_exec_path()]
    return NOT_EXECUTABLE if any(os.path.exists(path) for path in named) else NOT_FOUND


class Child:
    """A running command. `watch` is called every second, and returns why the command must end, or None."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Raises OSError."""
        libc = ctypes.CDLL(None, use_errno=True)
        own_pid = os.getpid()
        self._signals = {*_FORWARDED, signal.SIGCHLD}
        self._mask_before = signal.pthread_sigmask(signal.SIG_BLOCK, self._signals)

        def prepare() -> None:
            # If this process is killed, the command gets SIGTERM: its lease is over.
            libc.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
            if os.getppid() != own_pid:
                os.kill(os.getpid(), signal.SIGTERM)
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask_before)

        try:
            self._process = subprocess.Popen(command, env=dict(environment), preexec_fn=prepare)
        except OSError:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask_before)
            raise

    def wait(self, watch: Callable[[], str | None], limit_s: float | None) -> tuple[int, str | None]:
        """The exit status, and why the command was ended, None if it ended by itself."""
        started_s = time.monotonic()
        reason: str | None = None
        asked_s: float | None = None
        while (status := self._process.poll()) is None:
            self._pass_on_signal(_POLL_S)
            now_s = time.monotonic()
            if reason is None:
                reason = watch()
                if reason is None and limit_s is not None and now_s - started_s >= limit_s:
                    reason = "the time limit (--for) is over"
                if reason is not None:
                    asked_s = now_s
                    self._process.terminate()
            elif asked_s is not None and now_s - asked_s >= _GRACE_S:
                self._process.kill()
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask_before)
        return (status if status >= 0 else 128 - status), reason

    def _pass_on_signal(self, timeout_s: float) -> None:
        found = signal.sigtimedwait(self._signals, timeout_s)
        if found is not None and found.si_signo != signal.SIGCHLD and found.si_code != _FROM_KERNEL:
            self._process.send_signal(found.si_signo)


def status_of_error(error: OSError) -> int:
    return NOT_FOUND if error.errno in (errno.ENOENT, errno.ENOTDIR) else NOT_EXECUTABLE
