"""Ways in which a user stops a program: signal, debugger, debugger at one thread, freezers of cgroup v1 and v2."""

import ctypes
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Protocol
from uuid import uuid4

import pytest

from gpucommons.pauser.release import state_letter
from gpucommons.pauser.stopped import FreezerMounts
from needs import needs_root
from waiting import until

# `calm` is entered for the moment in which the program stops: it holds no lock of others then.
Calm = Callable[[], AbstractContextManager[None]]


class Stopper(Protocol):
    def __call__(self, pid: int, calm: Calm = nullcontext) -> AbstractContextManager[None]: ...


_ATTACH, _DETACH = 16, 17
_WALL = 0x40000000


@contextmanager
def by_signal(pid: int, calm: Calm = nullcontext) -> Iterator[None]:
    with calm():
        os.kill(pid, signal.SIGSTOP)
        until(lambda: state_letter(pid) == "T", "it is stopped")
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@contextmanager
def by_debugger(pid: int, calm: Calm = nullcontext) -> Iterator[None]:
    """From one thread: a tracee belongs to the thread that attached."""
    yield from _traced(pid, calm)


@contextmanager
def by_debugger_at_one_thread(pid: int, calm: Calm = nullcontext) -> Iterator[None]:
    """Not its first one."""
    yield from _traced(max(int(thread) for thread in os.listdir(f"/proc/{pid}/task")), calm)


def _traced(thread: int, calm: Calm) -> Iterator[None]:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
    with calm():
        if libc.ptrace(_ATTACH, thread, None, None):
            pytest.skip(f"needs ptrace: {os.strerror(ctypes.get_errno())}")
        os.waitpid(thread, _WALL)
    try:
        yield
    finally:
        libc.ptrace(_DETACH, thread, None, None)


@contextmanager
def by_freezer_v1(pid: int, calm: Calm = nullcontext) -> Iterator[None]:
    yield from _frozen(pid, FreezerMounts().v1, "freezer.state", (b"FROZEN", b"THAWED"), calm)


@contextmanager
def by_freezer_v2(pid: int, calm: Calm = nullcontext) -> Iterator[None]:
    yield from _frozen(pid, FreezerMounts().v2, "cgroup.freeze", (b"1", b"0"), calm)


def _frozen(pid: int, mount: Path | None, name: str, words: tuple[bytes, bytes], calm: Calm) -> Iterator[None]:
    needs_root()
    if mount is None:
        pytest.skip(f"needs a mounted freezer with {name}")
    group = mount / f"gpucommons-test-{uuid4().hex}"
    try:
        group.mkdir()
        (group / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        pytest.skip(f"needs a freezer that can be written: {error}")
    state = group / name
    try:
        with calm():
            state.write_bytes(words[0])
            until(lambda: FreezerMounts().is_frozen(pid), "it is frozen")
        yield
    finally:
        state.write_bytes(words[1])
        with suppress(OSError):
            (mount / "cgroup.procs").write_text(str(pid))
        with suppress(OSError):
            until(lambda: not (group / "cgroup.procs").read_text(), "it has left its cgroup")
            group.rmdir()


WAYS: dict[str, Stopper] = {
    "signal": by_signal,
    "debugger": by_debugger,
    "debugger_at_one_thread": by_debugger_at_one_thread,
    "freezer_v1": by_freezer_v1,
    "freezer_v2": by_freezer_v2,
}
