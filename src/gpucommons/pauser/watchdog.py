"""`python -m gpucommons.pauser.watchdog FD PID RECORD`: the second process of the pauser. It pauses nothing.

It hears the pauser's heartbeat. When that has been silent for `SILENT_S`, whether the pauser was stopped, hangs or is
starved, it resumes every program in the record, and kills the pauser, so that another is started. When the pauser has
ended, it resumes what was left, and ends. A program that its user has stopped cannot be resumed before it is continued:
the watchdog stays for it, until another pauser has taken over the record.
"""

import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from gpucommons.pauser import cuda, release
from gpucommons.pauser.backend import Failure, PauseBackend
from gpucommons.pauser.freeze import Freeze
from gpucommons.pauser.heartbeat import BEAT_S
from gpucommons.pauser.log import Log
from gpucommons.pauser.record import PauseRecord, RecordError
from gpucommons.pauser.release import UNFINISHED, Leftover

SILENT_S: Final = 2.0
# How long one round of resuming takes at most, and how long after the pauser's end its record may still be locked.
_ROUND_S: Final = 0.5
_CLAIM_S: Final = 1.0
_PAUSE_S: Final = 0.05
_READ_BYTES: Final = 4096


class Watchdog:
    """`link` is the other end of the pauser's; `pauser` is its pid."""

    def __init__(self, link: socket.socket, pauser: int, record: Path, log: Log) -> None:
        self._link = link
        self._record = record
        self._log = log
        self._backends: dict[str, PauseBackend] = {"freeze": Freeze()}
        self._pauser = pauser

    def load(self) -> None:
        driver = cuda.load()
        if not isinstance(driver, Failure):
            self._backends["cuda"] = driver

    def run(self) -> None:
        silent_s = 0.0
        while True:
            before_s = time.monotonic()
            heard = self._hear(BEAT_S)
            if heard is None:
                break
            # Time in which this process did not run either says nothing of the pauser.
            silent_s = 0.0 if heard else silent_s + min(time.monotonic() - before_s, 2 * BEAT_S)
            if silent_s >= SILENT_S:
                self._take_over()
                silent_s = SILENT_S / 2
        self._finish()

    def _hear(self, within_s: float) -> bool | None:
        """Whether the heart has beaten; None once the pauser has ended."""
        if not select.select([self._link], [], [], within_s)[0]:
            return False
        try:
            if not self._link.recv(_READ_BYTES):
                return None
            self._link.send(b".", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return True
        except OSError:
            return None
        return True

    def _take_over(self) -> None:
        self._log.line(f"the pauser has been silent for {SILENT_S:g} s: what it had paused is resumed")
        self._resume(owned=False)
        # It is our parent for as long as it lives: no other process can have its pid.
        if self._hear(0.0) is False and os.getppid() == self._pauser:
            self._log.line("the pauser is killed, so that another is started")
            with suppress(OSError):
                os.kill(self._pauser, signal.SIGKILL)

    def _finish(self) -> None:
        """The pauser has ended. Nothing is left to do once another one has the record."""
        while self._resume(owned=True):
            time.sleep(_PAUSE_S)

    def _resume(self, *, owned: bool) -> bool:
        """Whether programs are left that can be resumed later."""
        try:
            record = PauseRecord.open_existing(self._record)
        except RecordError as error:
            self._log.line(str(error))
            return False
        if record is None:
            return False
        try:
            if owned and not record.claim(_CLAIM_S):
                return False
            attempts = release.resume(record, self._backends, owned=owned, within_s=_ROUND_S)
        except OSError as error:
            self._log.line(f"cannot use the record of paused programs {self._record}: {error.strerror}")
            return True
        finally:
            record.close()
        return any(self._can_wait(left) for left in attempts)

    def _can_wait(self, left: Leftover) -> bool:
        return left.outcome in UNFINISHED and left.entry.backend in self._backends


def main() -> None:
    descriptor, pauser, record = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    # It ends when the pauser does, and not before.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    log = Log("pauser's watchdog")
    watchdog = Watchdog(socket.socket(fileno=descriptor), pauser, record, log)
    watchdog.load()
    watchdog.run()
    log.drain(0.5)
    os._exit(0)


if __name__ == "__main__":
    main()
