"""Keeps the programs of the stack running: restarts a program that dies, and ends all of them on SIGTERM.

Run as `python -m gpucommons.stack.supervisor RUN_DIRECTORY`; the directory holds the plan. The configuration has been
rendered and checked before the plan is written.
"""

import asyncio
import contextlib
import ctypes
import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from gpucommons.stack.process import identity_of, write_pid_file

_STOP_S = 30.0
_LOG_BYTES = 10 * 2**20
_PR_SET_PDEATHSIG = 1
# Resolved before any fork: as little as possible should happen between fork and exec.
_prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


@dataclass(frozen=True, slots=True)
class SupervisedProgram:
    """One program: its command line and the file for its output."""

    name: str
    arguments: list[str]
    log: str


def restart_delay_s(failures: int) -> float:
    """1 s after the first death, doubling to a minute."""
    return min(2.0 ** min(max(failures - 1, 0), 6), 60.0)


def failures_after(failures: int, ran_s: float) -> int:
    """After a run of a minute the count starts again."""
    return 1 if ran_s >= 60.0 else failures + 1


def write_plan(run: Path, services: Sequence[SupervisedProgram]) -> None:
    run.mkdir(mode=0o700, parents=True, exist_ok=True)
    for service in services:
        deaths_file(run, service.name).unlink(missing_ok=True)
    (run / "plan.json").write_text(json.dumps([asdict(service) for service in services]))


def deaths_file(run: Path, service: str) -> Path:
    """Exists once the service has ended unexpectedly; holds the number of times in a row."""
    return run / f"{service}.deaths"


def read_plan(run: Path) -> list[SupervisedProgram]:
    return [SupervisedProgram(**entry) for entry in json.loads((run / "plan.json").read_text())]


@contextlib.contextmanager
def exclusive(run: Path) -> Iterator[bool]:
    """False if another supervisor uses this directory. The kernel releases the lock when its holder ends."""
    with open(run / "supervisor.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def _die_with_parent() -> None:
    """Runs in the child before exec, so that the program ends if the supervisor is killed."""
    if _prctl is not None:
        _prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))


def _open_log(file: Path) -> int:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if file.exists() and file.stat().st_size > _LOG_BYTES:
        file.replace(file.with_suffix(".log.1"))
    return os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


async def _keep(service: SupervisedProgram, run: Path, stop: asyncio.Event) -> None:
    failures = 0
    pid_file = run / f"{service.name}.pid"
    while not stop.is_set():
        begun = time.monotonic()
        log = _open_log(Path(service.log))
        try:
            process = await asyncio.create_subprocess_exec(
                *service.arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_die_with_parent,
            )
        finally:
            os.close(log)
        identity = identity_of(process.pid)
        if identity is not None:
            write_pid_file(pid_file, identity)
        await _run_until(process, stop)
        pid_file.unlink(missing_ok=True)
        if stop.is_set():
            return
        failures = failures_after(failures, time.monotonic() - begun)
        deaths_file(run, service.name).write_text(str(failures))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), restart_delay_s(failures))


async def _run_until(process: asyncio.subprocess.Process, stop: asyncio.Event) -> None:
    """Returns when the program has ended, by itself or because of `stop`."""
    ended = asyncio.ensure_future(process.wait())
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait({ended, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if ended.done():
        return
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    done, _ = await asyncio.wait({ended}, timeout=_STOP_S)
    if not done:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await ended


async def supervise(run: Path) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    # Closing the terminal does not stop the stack.
    loop.add_signal_handler(signal.SIGHUP, lambda: None)
    own = identity_of(os.getpid())
    assert own is not None
    write_pid_file(run / "supervisor.pid", own)
    try:
        await asyncio.gather(*(_keep(service, run, stop) for service in read_plan(run)))
    finally:
        (run / "supervisor.pid").unlink(missing_ok=True)


def run_supervisor(run: Path) -> int:
    with exclusive(run) as alone:
        if not alone:
            return 3
        asyncio.run(supervise(run))
    return 0


if __name__ == "__main__":
    sys.exit(run_supervisor(Path(sys.argv[1])))
