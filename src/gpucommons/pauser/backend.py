"""What the pauser needs from whatever pauses a process: five calls, and their failures as values."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Protocol

from gpucommons.pauser.stopped import STOPPED


class State(IntEnum):
    """The state of a process as the driver reports it."""

    RUNNING = 0
    LOCKED = 1
    CHECKPOINTED = 2
    FAILED = 3


class Code(IntEnum):
    """Why a call failed. Positive codes are the CUDA driver's; negative codes are the pauser's own."""

    OUT_OF_MEMORY = 2
    NOT_CUDA = 3
    OPERATING_SYSTEM = 304
    WRONG_STATE = 401
    TIMEOUT = 600
    NOT_SUPPORTED = 801

    GONE = -1
    RECORD = -2
    UNAVAILABLE = -3
    NOT_PAUSED = -4
    BUSY = -5
    REFUSED = -6
    RESTING = -7
    DEADLINE = -8
    LEFT_ALONE = -9
    STOPPED = -10
    HANGS = -11
    SHARED_MEMORY = -12


_MEANINGS: Final[dict[int, str]] = {
    Code.OUT_OF_MEMORY: "out of memory",
    Code.NOT_CUDA: "not a CUDA process",
    Code.OPERATING_SYSTEM: "no such process, or no right to pause it",
    Code.WRONG_STATE: "the process is in the wrong state for this call",
    Code.TIMEOUT: "timeout: submitted GPU work did not finish in time",
    Code.NOT_SUPPORTED: "not supported for this process",
    Code.GONE: "the process has ended",
    Code.RECORD: "the record of paused programs cannot be written",
    Code.UNAVAILABLE: "the pauser is not available",
    Code.NOT_PAUSED: "the process is not paused by this pauser",
    Code.BUSY: "another call for this process is under way",
    Code.REFUSED: "refused",
    Code.RESTING: "the process was paused for the longest time allowed and must run for a while",
    Code.DEADLINE: "the pauser did not answer in time",
    Code.LEFT_ALONE: "the process could not be paused repeatedly and is left alone for a while",
    Code.STOPPED: STOPPED,
    Code.HANGS: "the driver's call for the process has not returned",
    Code.SHARED_MEMORY: "it shares GPU memory with another process (CUDA IPC), which the driver does not bring back",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """A call that failed. Codes that are not in `Code` are kept as the driver gave them."""

    code: int
    meaning: str


def failure(code: int, detail: str = "") -> Failure:
    """The failure with its meaning in plain English, and what is known beyond the code."""
    meaning = _MEANINGS.get(code, f"CUDA error {code}")
    return Failure(code, f"{meaning}: {detail}" if detail else meaning)


class PauseBackend(Protocol):
    """Calls return None where they succeeded. Each may take long; none may be called with a lock of ours held."""

    @property
    def name(self) -> str: ...

    @property
    def hangs_on_stopped(self) -> bool:
        """Whether its calls do not return while the process is stopped by something else."""
        ...

    def state(self, pid: int) -> State | Failure: ...

    def lock(self, pid: int, timeout_ms: int) -> Failure | None:
        """Pause the process once its submitted GPU work has finished. After a failure it runs."""
        ...

    def checkpoint(self, pid: int) -> Failure | None:
        """Move the GPU memory of a locked process to host memory."""
        ...

    def restore(self, pid: int) -> Failure | None:
        """Bring the GPU memory of a checkpointed process back. It is locked afterwards."""
        ...

    def unlock(self, pid: int) -> Failure | None: ...
