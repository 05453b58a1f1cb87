"""The account of the fake GPUs (gpus.h) for Python: what a test declares and reads, and what a client reports."""

import ctypes
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

_ACTIVITIES, _JOBS = 4, 256


class Activity(NamedTuple):
    """Shares of time in which a program that runs alone keeps the parts of the GPU active, 0 to 1."""

    sm: float
    tensor: float = 0.0
    dram: float = 0.0
    graphics: float = 0.9


class Phase(NamedTuple):
    """What a program does for a while; after its last phase it begins with the first again.

    Without an activity it loads data, for `length_s` by the clock. With one it computes, as much as takes `length_s`
    alone: longer where it is paused or shares the GPU.
    """

    activity: Activity | None
    length_s: float = math.inf


class Pair(NamedTuple):
    """Two programs together: the progress of each over that alone, and the activity of the GPU."""

    first: Activity
    second: Activity
    progress: tuple[float, float]
    device: Activity


class Work(NamedTuple):
    """What a program has done, in seconds.

    `progress_s`: its work, measured in the time that it takes alone. `running_s`: it computed, alone or not.
    `computing_s`: it computed, or would have if it had not been paused.
    """

    progress_s: float
    running_s: float
    computing_s: float


class Works(NamedTuple):
    """The work of all jobs at one moment of the monotonic clock."""

    now_s: float
    by_job: tuple[Work, ...]


class _Phase(ctypes.Structure):
    _fields_ = (
        ("computes", ctypes.c_int32),
        ("pad", ctypes.c_int32),
        ("length_s", ctypes.c_double),
        ("activity", ctypes.c_double * _ACTIVITIES),
    )


class _Pair(ctypes.Structure):
    _fields_ = (
        ("sm", ctypes.c_double * 2),
        ("progress", ctypes.c_double * 2),
        ("device", ctypes.c_double * _ACTIVITIES),
    )


class _Account(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_double) for name in Work._fields)


class GpuAccount:
    """The file at `path`; `create` makes it."""

    def __init__(self, library: Path, path: Path, *, create: bool = False) -> None:
        self._library = ctypes.CDLL(str(library))
        self._library.gpus_open.restype = ctypes.c_void_p
        self._library.gpus_accounts.restype = ctypes.c_double
        found = self._library.gpus_open(str(path).encode(), int(create))
        assert found, f"cannot open {path}"
        self._gpus = ctypes.c_void_p(found)
        self._jobs = 0

    # -- the test

    def add_pair(self, pair: Pair) -> None:
        sm = (ctypes.c_double * 2)(pair.first.sm, pair.second.sm)
        given = _Pair(sm, (ctypes.c_double * 2)(*pair.progress), (ctypes.c_double * _ACTIVITIES)(*pair.device))
        self._library.gpus_add_pair(self._gpus, ctypes.byref(given))

    def add_job(self, gpu: int, memory_bytes: int, phases: Sequence[Phase]) -> int:
        job = int(self._library.gpus_add_job(self._gpus, gpu, ctypes.c_uint64(memory_bytes)))
        assert job >= 0, "too many jobs, or no such GPU"
        for phase in phases:
            assert phase.length_s > 0
            activity = (ctypes.c_double * _ACTIVITIES)(*(phase.activity or ()))
            given = _Phase(phase.activity is not None, 0, phase.length_s, activity)
            self._library.gpus_add_phase(self._gpus, job, ctypes.byref(given))
        self._jobs = job + 1
        return job

    @contextmanager
    def exclusively(self) -> Iterator[None]:
        """No program is inside the account meanwhile, so that one may be stopped: it holds up no other."""
        self._library.gpus_enter(self._gpus)
        try:
            yield
        finally:
            self._library.gpus_leave(self._gpus)

    def works(self) -> Works:
        accounts = (_Account * _JOBS)()
        now_s = float(self._library.gpus_accounts(self._gpus, accounts))
        return Works(now_s, tuple(Work(a.progress_s, a.running_s, a.computing_s) for a in accounts[: self._jobs]))

    # -- a client

    def begin(self, job: int, pid: int, *, may_run: bool) -> None:
        self._library.gpus_begin(self._gpus, job, pid, int(may_run))

    def set_may_run(self, job: int, may_run: bool) -> None:
        self._library.gpus_set_may_run(self._gpus, job, int(may_run))

    def end(self, job: int) -> None:
        self._library.gpus_end(self._gpus, job)
