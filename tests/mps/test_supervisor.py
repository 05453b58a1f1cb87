"""Daemons of a fake nvidia-cuda-mps-control under the supervisor: started, adopted, restarted, stopped; their files."""

import asyncio
import os
import signal
import stat
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from fakes.mps import FakeMps
from gpucommons.leases.mps import plan, supervisor
from gpucommons.leases.mps.control import MpsControl, MpsError
from gpucommons.leases.mps.plan import DaemonStage, MpsKey
from gpucommons.leases.mps.supervisor import MpsSupervisor
from needs import needs_root
from open_folder import open_folder
from waiting import until

OTHER = 65534
KEY = MpsKey(os.geteuid(), "GPU-aaaa")


class Place:
    """`root` is the directory of the daemons. All that are left over are killed."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fake = FakeMps(directory)
        self.root = directory / "mps"
        monkeypatch.setenv("PATH", self.fake.path)

    def control(self, is_shared: bool = False) -> MpsControl:
        return MpsControl(self.root, is_shared)

    def say(self, key: MpsKey, text: str) -> None:
        """Let the daemon write this to its log."""
        pipes = self.control().places(key).pipes
        subprocess.run(
            ["nvidia-cuda-mps-control"],
            input=f"say {text}\n",
            env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(pipes)},
            text=True,
            check=True,
            capture_output=True,
        )

    def close(self) -> None:
        self.fake.unset("hang")
        for path in self.root.glob("*/p/nvidia-cuda-mps-control.pid"):
            try:
                os.kill(int(path.read_text()), signal.SIGKILL)
            except (OSError, ValueError):
                continue


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    with open_folder() as directory:
        made = Place(directory, monkeypatch)
        yield made
        made.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same steps in less time."""
    monkeypatch.setattr(plan, "IDLE_STOP_S", 0.3)
    monkeypatch.setattr(plan, "FIRST_RETRY_S", 0.05)
    monkeypatch.setattr(supervisor, "_TICK_S", 0.05)
    monkeypatch.setattr(supervisor, "_ASK_S", 0.1)


class Changes:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def supervised(place: Place, body: Callable[[MpsSupervisor], Awaitable[None]], is_shared: bool = False) -> None:
    async def whole() -> None:
        control = place.control(is_shared)
        made = MpsSupervisor(control, "per_user", lambda uid: f"user{uid}", lambda uuid: "0", Changes())
        await made.start()
        try:
            await body(made)
        finally:
            await made.stop()

    asyncio.run(whole())


async def eventually(ask: Callable[[], object], what: str) -> None:
    """As `until`, while the loop runs."""
    await asyncio.to_thread(until, ask, what)


def stage(made: MpsSupervisor, key: MpsKey = KEY) -> DaemonStage | None:
    daemon = made.daemon(key)
    return None if daemon is None else daemon.stage


def kinds(made: MpsSupervisor) -> list[str]:
    return [event.kind for event in made.reading().events]


def test_a_daemon_runs_as_its_user_in_that_users_directories(place: Place) -> None:
    needs_root()
    control, key = place.control(), MpsKey(OTHER, "GPU-aaaa")
    control.start(key)
    places = control.places(key)
    assert control.answers(key)
    assert (places.pipes / "started-with").read_text() == f"uid={OTHER} visible=GPU-aaaa options=\n"
    for path in places:
        found = path.stat()
        assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (OTHER, 0o700), path
    # The user cannot replace the two: they are in a directory of root's.
    for path in (places.pipes.parent, place.root):
        found = path.stat()
        assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (0, 0o711), path
    control.start(key)
    control.stop(key)
    assert not control.is_alive(key)
    assert not control.answers(key)


def test_a_daemon_for_all_users_is_roots_and_each_user_may_enter(place: Place) -> None:
    needs_root()
    control, key = place.control(is_shared=True), MpsKey(None, "GPU-aaaa")
    control.start(key)
    places = control.places(key)
    assert (places.pipes / "started-with").read_text() == "uid=0 visible=GPU-aaaa options=-multiuser-server\n"
    assert stat.S_IMODE(places.pipes.stat().st_mode) == 0o755
    control.stop(key)
    place.fake.set("old")
    with pytest.raises(MpsError, match="Unknown option: -multiuser-server"):
        control.start(key)


def test_what_is_missing_is_said(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    control = place.control()
    assert control.obstacle(OTHER) == ""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert control.obstacle(1000) == ""
    assert "cannot start MPS for uid 1001" in control.obstacle(1001)
    assert "needs root" in place.control(is_shared=True).obstacle(1000)
    monkeypatch.setenv("PATH", "/nowhere")
    assert "was not found" in control.obstacle(1000)


def test_files_of_a_user_lead_nowhere_else(place: Place) -> None:
    """A user can write in the directories of the own daemon: root reads no link, and signals no other process."""
    needs_root()
    control, key = place.control(), MpsKey(OTHER, "GPU-aaaa")
    control.start(key)
    places = control.places(key)
    pid_file = places.pipes / "nvidia-cuda-mps-control.pid"
    daemon = int(pid_file.read_text())
    secret = place.root.parent / "secret"
    secret.write_text("an error that is none of theirs\n")
    (places.logs / "server.log").symlink_to(secret)
    assert all("none of theirs" not in line for line in control.new_log_lines(key, {}))
    with subprocess.Popen(["sleep", "60"]) as victim:
        pid_file.write_text(f"{victim.pid}\n")
        assert control.pid(key) is None
        control.kill(key)
        assert victim.poll() is None
        victim.kill()
    pid_file.unlink()
    pid_file.symlink_to("/proc/self/stat")
    assert control.pid(key) is None
    os.kill(daemon, signal.SIGKILL)


def test_a_directory_of_another_user_is_not_used(place: Place) -> None:
    needs_root()
    place.root.mkdir()
    os.chown(place.root, OTHER, OTHER)
    with pytest.raises(MpsError, match="belongs to another user"):
        place.control().start(KEY)
    long = MpsControl(place.root.parent / ("x" * 90), is_shared=False)
    with pytest.raises(MpsError, match="too long for a socket"):
        long.start(KEY)


@pytest.mark.usefixtures("quick")
def test_a_daemon_is_started_watched_restarted_and_stopped(place: Place) -> None:
    async def body(made: MpsSupervisor) -> None:
        made.need([KEY])
        await eventually(lambda: stage(made) is DaemonStage.RUNNING, "it runs")
        first = made.control.pid(KEY)
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await eventually(lambda: made.control.pid(KEY) not in (first, None), "it is started again")
        await eventually(lambda: stage(made) is DaemonStage.RUNNING, "it runs again")
        await asyncio.to_thread(place.say, KEY, "Client 12 disconnected")
        await asyncio.to_thread(place.say, KEY, "Fatal GPU fault in client 12\x1b[2J")
        await eventually(lambda: "log" in kinds(made), "the log is an event")
        made.need([])
        await eventually(lambda: stage(made) is None, "it is stopped")
        assert made.control.pid(KEY) is None
        assert not made.control.places(KEY).pipes.parent.exists()
        assert kinds(made) == ["started", "died", "started", "log", "stopped"]
        (line,) = [event.sentence for event in made.reading().events if event.kind == "log"]
        assert line.endswith(r"Fatal GPU fault in client 12\x1b[2J")
        assert (made.reading().starts, made.reading().deaths) == (2, 1)

    supervised(place, body)


@pytest.mark.usefixtures("quick")
def test_a_daemon_that_programs_use_is_not_stopped(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.fake.set("clients", "12345\n")
    found: list[bool] = []
    has_clients = MpsControl.has_clients

    def noted(control: MpsControl, key: MpsKey) -> bool:
        found.append(has_clients(control, key))
        return found[-1]

    monkeypatch.setattr(MpsControl, "has_clients", noted)

    async def body(made: MpsSupervisor) -> None:
        made.need([KEY])
        await eventually(lambda: stage(made) is DaemonStage.RUNNING, "it runs")
        first = made.control.pid(KEY)
        made.need([])
        await eventually(lambda: len(found) >= 2, "it was to be stopped twice")
        assert found[:2] == [True, True]
        assert made.control.pid(KEY) == first
        place.fake.unset("clients")
        await eventually(lambda: stage(made) is None, "without a program it is stopped")
        assert "died" not in kinds(made)

    supervised(place, body)


@pytest.mark.usefixtures("quick")
def test_a_daemon_that_hangs_is_killed_and_started_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpucommons.leases.mps.control._ANSWER_S", 0.3)

    async def body(made: MpsSupervisor) -> None:
        made.need([KEY])
        await eventually(lambda: stage(made) is DaemonStage.RUNNING, "it runs")
        first = made.control.pid(KEY)
        place.fake.set("hang")
        await eventually(lambda: "died" in kinds(made), "it is given up")
        place.fake.unset("hang")
        await eventually(
            lambda: made.control.pid(KEY) not in (first, None) and stage(made) is DaemonStage.RUNNING, "another runs"
        )

    supervised(place, body)


@pytest.mark.usefixtures("quick")
def test_a_daemon_that_does_not_start_is_given_up_with_its_own_words(place: Place) -> None:
    place.fake.set("fail", "no CUDA-capable device is detected\n")

    async def body(made: MpsSupervisor) -> None:
        made.need([KEY])

        def given_up() -> bool:
            daemon = made.daemon(KEY)
            return daemon is not None and daemon.is_given_up

        await eventually(given_up, "it is given up")
        daemon = made.daemon(KEY)
        assert daemon is not None
        assert "ended with status 1: no CUDA-capable device is detected" in daemon.reason
        place.fake.unset("fail")
        await eventually(lambda: stage(made) is DaemonStage.RUNNING, "it is tried again, and runs")

    supervised(place, body)


@pytest.mark.usefixtures("quick")
def test_the_next_agent_uses_a_daemon_that_a_lease_needs_and_stops_another(place: Place) -> None:
    other = MpsKey(KEY.uid, "GPU-bbbb")

    async def first(made: MpsSupervisor) -> None:
        made.need([KEY])
        await eventually(lambda: stage(made) is DaemonStage.RUNNING, "it runs")

    supervised(place, first)
    control = place.control()
    kept = control.pid(KEY)
    assert kept is not None, "the command of the lease goes on"
    control.start(other)

    async def second(made: MpsSupervisor) -> None:
        made.need([KEY])
        assert stage(made) is DaemonStage.RUNNING
        await eventually(lambda: stage(made, other) is None, "the one without a lease is stopped")
        assert control.pid(KEY) == kept
        assert made.reading().starts == 0
        made.need([])

    supervised(place, second)
    assert control.pid(KEY) is None
    assert control.pid(other) is None
