"""Signs of life of the pauser, for whatever has to act when there are none.

They come only while all threads that programs depend on go on: a pauser that is stopped, or whose main thread hangs, is
as silent as one that was killed. They go to the watchdog (a process of ours, watchdog.py), to systemd (WatchdogSec),
and into the modification time of a file, which probes of Kubernetes and Docker look at. A watchdog that dies or hangs
is replaced.
"""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from gpucommons.pauser.log import Log

BEAT_S: Final = 0.25
# A thread that has not gone on for so long hangs. They go on every 0.5 s.
_LIVELY_WITHIN_S: Final = 1.0
# The watchdog answers each beat; at its start it loads the driver first.
_ANSWERS_WITHIN_S: Final = 5.0
_STARTS_WITHIN_S: Final = 20.0
_REPLACE_AFTER_S: Final = 1.0
_READ_BYTES: Final = 4096


class Heartbeat:
    """`lively_s` is since when all threads have gone on. `file` is touched at each beat, where there is one."""

    def __init__(self, record: Path, lively_s: Callable[[], float], log: Log, file: Path | None = None) -> None:
        self._record = record
        self._lively_s = lively_s
        self._log = log
        self._file = file
        self._started = False
        self._guards = False
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self._answered_s = 0.0
        self._start_again_s = 0.0

    def start(self) -> None:
        """The pauser serves from now on, whether or not it can pause."""
        if not self._started:
            self._started = True
            _notify_systemd("READY=1")
            threading.Thread(target=self._run, name="heart", daemon=True).start()

    def guard(self) -> None:
        """It can pause: a watchdog is needed from now on."""
        self._guards = True

    def _run(self) -> None:
        while True:
            now_s = time.monotonic()
            if now_s - self._lively_s() < _LIVELY_WITHIN_S:
                self._beat()
            self._look_at_watchdog(now_s)
            time.sleep(BEAT_S)

    def _beat(self) -> None:
        if self._link is not None:
            # Where it does not read, it is replaced soon.
            with suppress(OSError):
                self._link.send(b".", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        _notify_systemd("WATCHDOG=1")
        if self._file is not None:
            with suppress(OSError):
                self._file.touch()

    # -- the watchdog

    def _start_watchdog(self, now_s: float) -> None:
        self._start_again_s = now_s + _REPLACE_AFTER_S
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            self._log.line(f"cannot start the watchdog: {error}; it is tried again")
            return
        with theirs:
            try:
                self._watchdog = subprocess.Popen(
                    [
                        *(sys.executable, "-P", "-m", "gpucommons.pauser.watchdog"),
                        *(str(theirs.fileno()), str(os.getpid()), str(self._record)),
                    ],
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    # A signal to all processes of this session, such as Ctrl-Z, must not stop both.
                    start_new_session=True,
                )
            except (OSError, subprocess.SubprocessError) as error:
                self._log.line(f"cannot start the watchdog: {error}; it is tried again")
                ours.close()
                return
        self._link = ours
        self._answered_s = now_s + _STARTS_WITHIN_S - _ANSWERS_WITHIN_S

    def _look_at_watchdog(self, now_s: float) -> None:
        if self._link is None:
            if self._guards and now_s >= self._start_again_s:
                self._start_watchdog(now_s)
            return
        try:
            if self._link.recv(_READ_BYTES, socket.MSG_DONTWAIT):
                self._answered_s = now_s
                return
            ended = "the watchdog has ended"
        except BlockingIOError:
            if now_s - self._answered_s < _ANSWERS_WITHIN_S:
                return
            ended = "the watchdog does not answer"
        except OSError as error:
            ended = f"the watchdog cannot be reached: {error.strerror}"
        self._log.line(f"{ended}; starting another")
        self._link.close()
        self._link = None
        if self._watchdog is not None:
            self._watchdog.kill()
            with suppress(subprocess.TimeoutExpired):
                self._watchdog.wait(BEAT_S)


def _notify_systemd(state: str) -> None:
    """One datagram to the socket that systemd names, where it started us."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        # A leading @ stands for the zero byte of an abstract address.
        sender.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)
