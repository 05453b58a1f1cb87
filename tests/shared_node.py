"""A node whose plain programs share fake GPUs: a real agent with its real pauser, and the programs, as processes.

The agent runs in its own mount and cgroup namespaces. Its /run is a directory of the test, so that the record of paused
programs is the test's own and outlives the agent. Its cgroup is the root, so that programs are grouped by session,
wherever the test itself runs.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from fakes.gpu.account import Activity, Phase
from fakes.shared_gpu import Rates, SharedGpu, SharedJob, SharedProgram
from gpucommons.pauser.release import state_letter
from needs import needs_program, needs_root
from open_folder import open_folder
from running import RunningAgent, command, command_process, running_agent
from waiting import WITHIN_S, until

_WINDOWS = 6
_NEW_SESSION = ("setsid",)
_OWN_RUN = 'mount --bind "$0" /run && exec "$@"'


# What programs open as they start: the device files of a fake GPU, and the driver's library.
DEVICE_FILES = ("nvidiactl", "nvidia-uvm", "nvidia0", "libcuda.so.1")


def device_files(directory: Path) -> Path:
    directory.mkdir()
    for name in DEVICE_FILES:
        (directory / name).touch()
        (directory / name).chmod(0o666)
    return directory


class SharedNode:
    """`socket` is the scheduler's."""

    def __init__(self, directory: Path, gpus: int = 1) -> None:
        needs_root()
        needs_program("unshare", "setsid", "mount")
        self.shared = SharedGpu(directory / "gpus", gpus)
        self.run = directory / "run"
        self.run.mkdir()
        self.record = self.run / "gpucommons" / "paused"
        self.socket = directory / "scheduler.sock"
        self.config = directory / "config.toml"
        self._agents = ExitStack()
        self._started: list[RunningAgent] = []

    @property
    def agent(self) -> RunningAgent:
        """The one that was started last."""
        return self._started[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """A pauser whose agent was killed resumes every program, and writes its record, before it exits."""
        pauser = self.pauser()
        self._agents.close()
        self.shared.__exit__(kind, value, trace)
        until(lambda: is_gone(pauser), "the pauser has ended")

    def start_agent(
        self,
        *arguments: str,
        sections: str = "",
        environment: Mapping[str, str] | None = None,
        prefix: tuple[str, ...] = (),
    ) -> Self:
        """`sections` is the text of its configuration file, `prefix` a command that becomes the agent."""
        self.config.write_text(sections)
        given = {
            **self.shared.environment(),
            "GPUCOMMONS_SCHEDULER_SOCKET": str(self.socket),
            "GPUCOMMONS_SCHEDULER_XPUSHARE_SOCKET": "",
            # Also where Slurm or a kubelet run: they would turn leases off.
            "GPUCOMMONS_LEASES_ENABLED": "true",
            **(environment or {}),
        }
        namespaces = ("unshare", "--mount", "--cgroup", "--propagation", "private")
        started = running_agent(
            *(arguments or ("--scheduler", "--share")),
            *("--config", str(self.config)),
            environment=given,
            prefix=(*prefix, *namespaces, "sh", "-c", _OWN_RUN, str(self.run)),
        )
        self._started.append(self._agents.enter_context(started))
        return self

    # -- programs

    def program(
        self,
        solo: Activity | None = None,
        *,
        phases: Sequence[Phase] = (),
        gpu: int = 0,
        uid: int | None = None,
        session: bool = True,
        memory_bytes: int = 2**30,
    ) -> SharedProgram:
        """A job of its own; without `session` it belongs to the job of all others without one."""
        prefix = _NEW_SESSION if session else ()
        return self.shared.program(solo, phases=phases, gpu=gpu, uid=uid, prefix=prefix, memory_bytes=memory_bytes)

    def leased(
        self, socket: Path, solo: Activity | None, memory_bytes: int, *options: str, session: bool = True
    ) -> SharedProgram:
        """Started with `gpucommons run --share`; returns once the lease is granted and the program runs.

        `solo` is None for a program that is idle.
        """
        path = os.pathsep.join(filter(None, sys.path))
        environment = ("env", f"GPUCOMMONS_LEASES_SOCKET={socket}", f"PYTHONPATH={path}")
        run = (sys.executable, "-m", "gpucommons", "run", "--share", "--quiet", *options, "--")
        prefix = (*(_NEW_SESSION if session else ()), *environment, *run)
        idle = () if solo is not None else (Phase(None),)
        return self.shared.program(solo, phases=idle, memory_bytes=memory_bytes, prefix=prefix, is_child=True)

    # -- the scheduler

    def scheduler(self, *arguments: str) -> str:
        done = command("scheduler", *arguments, "--socket", str(self.socket))
        assert done.returncode == 0, done.stderr
        return done.stdout

    def turns(self) -> Any:
        """The document of the API: at most a second old."""
        return json.loads(self.agent.get("/api/v1/turns")[1])["turns"]

    def client(self, job: SharedJob) -> Any | None:
        """Its row in the document; None while it takes no part."""
        return next((row for row in self.turns()["clients"].values() if job.pid in _pids(row)), None)

    def standing(self, job: SharedJob) -> str:
        row = self.client(job)
        return "" if row is None else str(row["standing"])

    def way(self, gpu: int = 0) -> str:
        return next((str(row["way"]) for row in self.turns()["gpus"].values() if row["index"] == gpu), "")

    def reason(self, gpu: int = 0) -> str:
        """Why its clients share the GPU as they do, in one word."""
        return next((str(row["way_reason"]) for row in self.turns()["gpus"].values() if row["index"] == gpu), "")

    def left_alone(self) -> dict[int, str]:
        """The programs that take no turns, and why: the sentences of status, by pid."""
        rows = json.loads(self.scheduler("status", "--json"))["turns"]["left_alone"]
        return {int(row["name"].split("(pid ")[1].rstrip(")")): str(row["sentence"]) for row in rows}

    def reasons(self, *jobs: SharedJob, saying: str) -> list[str]:
        """Why each of these takes no turns, once all sentences contain this. At first the pauser has not started."""

        def found() -> list[str] | None:
            rows = self.left_alone()
            sentences = [rows.get(job.pid, "") for job in jobs]
            return sentences if all(saying in sentence for sentence in sentences) else None

        return until(found, f"left alone: {saying}")

    def wait_for(self, ask: Callable[[], object], what: str, within_s: float = WITHIN_S) -> None:
        until(ask, f"{what}; {self.turns()}", within_s)

    def wait_for_rates(self, is_due: Callable[[Rates], bool], window_s: float) -> None:
        """A machine that stands still for a second spoils a window: one of these must show the due."""
        windows = []
        for _ in range(_WINDOWS):
            before = self.shared.works()
            self.shared.let_pass(window_s)
            windows.append(self.shared.rates_since(before))
            if is_due(windows[-1]):
                return
        raise AssertionError(f"none of {_WINDOWS} windows of {window_s:g} s shows the due: {windows}")

    # -- its processes

    def pauser(self) -> int | None:
        """The pid of the pauser; None between two, and before an agent has started."""
        if not self._started:
            return None
        try:
            children = psutil.Process(self.agent.process.pid).children()
        except psutil.NoSuchProcess:
            return None
        return next((child.pid for child in children if "gpucommons.pauser" in _command_line(child)), None)

    def resume_all(self, *options: str) -> None:
        arguments = ("resume", "--all", "--record", str(self.record), *options)
        done = command_process(*arguments, environment=self.shared.environment())
        assert done.returncode == 0, done.stdout + done.stderr


def _pids(row: Any) -> list[int]:
    return row.get("processes") or [row["pid"]]


def _command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def kill(pid: int | None, number: int = signal.SIGKILL) -> None:
    if pid is not None:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return


def is_gone(pid: int | None) -> bool:
    return pid is None or state_letter(pid) in ("", "Z")


@contextmanager
def shared_node(gpus: int = 1) -> Iterator[SharedNode]:
    with open_folder() as directory, SharedNode(directory, gpus) as node:
        yield node
