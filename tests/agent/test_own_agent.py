"""An agent of an ordinary user, `gpucommons up --share`: the user's commands find its scheduler without an option."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from fakes.shared_gpu import MATMUL, SharedGpu, SharedProgram
from gpucommons.pauser.backend import State
from needs import needs_program, needs_root
from open_folder import open_folder
from running import RunningAgent, running_agent
from users import as_user
from waiting import until

UID, STRANGER = 4711, 4712
MIB = 1 << 20


class OwnAgent:
    """Two programs of the user, the user's agent, and the user's commands."""

    def __init__(self, directory: Path, shared: SharedGpu) -> None:
        self.shared = shared
        self.runtime = directory / "runtime"
        state = directory / "state"
        for folder in (self.runtime, state):
            folder.mkdir(mode=0o700)
            os.chown(folder, UID, UID)
        # No agent of this machine is found, and the directory of nvshare's sockets is that of the machine.
        self.environment: Mapping[str, str] = {
            **shared.environment(),
            "RUNTIME_DIRECTORY": "",
            "XDG_RUNTIME_DIR": str(self.runtime),
            "STATE_DIRECTORY": str(state),
            "GPUCOMMONS_LEASES_SOCKET": "",
            "GPUCOMMONS_SCHEDULER_XPUSHARE_SOCKET": "",
            "GPUCOMMONS_WEB_LISTEN": "",
        }
        self.control = self.runtime / "gpucommons" / "control.sock"
        self.programs = [shared.program(MATMUL[4096], uid=UID, prefix=("setsid",), memory_bytes=MIB) for _ in range(2)]
        self.agent: RunningAgent

    def command(self, *arguments: str, uid: int = UID) -> "subprocess.CompletedProcess[str]":
        path = os.pathsep.join(filter(None, sys.path))
        return subprocess.run(
            [*as_user(uid), sys.executable, "-m", "gpucommons", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, **self.environment, "PYTHONPATH": path},
        )

    def say(self, *arguments: str) -> str:
        done = self.command(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def own() -> Iterator[OwnAgent]:
    needs_root()
    needs_program("setpriv", "setsid")
    with open_folder() as directory, SharedGpu(directory / "gpus") as shared:
        made = OwnAgent(directory, shared)
        with running_agent("--share", environment=made.environment, prefix=as_user(UID)) as made.agent:
            until(lambda: all(one.program.locks > 1 for one in made.programs), "they take turns")
            yield made


def limited(own: OwnAgent, program: SharedProgram) -> str:
    return own.say("scheduler", "set-limit", f"pid:{program.pid}", "--core", "40")


def test_the_status_is_that_of_the_users_agent(own: OwnAgent) -> None:
    assert own.control.is_socket()
    assert not any("control socket is not served" in line for line in own.agent.lines)
    found = own.say("scheduler", "status")
    assert all(f"(pid {one.pid})" in found for one in own.programs)


@pytest.mark.long
def test_the_user_switches_and_limits(own: OwnAgent) -> None:
    assert "the scheduler is off" in own.say("scheduler", "off")
    until(lambda: not any(one.locked for one in own.programs), "all run")
    assert "the scheduler is on" in own.say("scheduler", "on")
    assert "1 connected client updated" in limited(own, own.programs[0])


@pytest.mark.long
def test_the_user_parks_and_wakes(own: OwnAgent) -> None:
    program = own.programs[1]
    assert "parked in" in own.say("park", str(program.pid))
    assert program.program.state is State.CHECKPOINTED
    assert "is back on the GPU" in own.say("wake", str(program.pid))
    program.program.runs()


def test_another_user_who_gets_to_the_socket_is_refused(own: OwnAgent) -> None:
    """The directory of a user is closed to others; these commands have a capability that opens it."""
    done = own.command("scheduler", "off", uid=STRANGER)
    assert (done.returncode, "only root, the agent's user" in done.stderr) == (2, True), done.stderr


@pytest.mark.long
def test_the_socket_ends_with_the_agent(own: OwnAgent) -> None:
    assert own.agent.stop() == 0
    assert not own.control.exists()
