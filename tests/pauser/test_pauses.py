"""What no real process does on demand: a pid that changes hands between the check and the lock."""

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpucommons.model.process_identity import ProcessKey
from gpucommons.pauser import pauses as module
from gpucommons.pauser.backend import Code, Failure, State, failure
from gpucommons.pauser.pauses import Pauses
from gpucommons.pauser.protocol import Notice
from gpucommons.pauser.record import PauseRecord
from gpucommons.pauser.release import key_of
from waiting import until


class Driver:
    """Locks whatever has the pid, and then something happens."""

    name = "cuda"
    hangs_on_stopped = True

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.locked = False

    def state(self, pid: int) -> State | Failure:
        return State.LOCKED if self.locked else State.RUNNING

    def lock(self, pid: int, timeout_ms: int) -> Failure | None:
        self.calls.append("lock")
        self.locked = True
        self.after_lock()
        return None

    def after_lock(self) -> None:
        return

    def unlock(self, pid: int) -> Failure | None:
        self.calls.append("unlock")
        self.locked = False
        return None

    def checkpoint(self, pid: int) -> Failure | None:
        self.calls.append("checkpoint")
        return None

    def restore(self, pid: int) -> Failure | None:
        self.calls.append("restore")
        return None


def test_a_pid_that_changed_hands_during_the_lock_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = key_of(os.getpid())
    assert key is not None
    other = ProcessKey(key.pid, key.start_ticks + 1)
    driver, now = Driver(), [key]
    monkeypatch.setattr(module, "key_of", lambda pid: now[0])
    monkeypatch.setattr(driver, "after_lock", lambda: now.__setitem__(0, other))
    pauses = Pauses(PauseRecord.open(tmp_path / "paused"), {"cuda": driver}, "cuda", 10.0, lambda notice: None)
    pauses.open_session(1)
    result = pauses.lock(1, key, 100, "", time.monotonic() + 10)
    assert result.failure is not None
    assert result.failure.code == Code.GONE
    assert driver.calls == ["lock", "unlock"]
    assert list((tmp_path / "paused").iterdir()) == []
    assert pauses.list_paused() == ()


def test_a_pid_that_changed_hands_while_a_new_program_was_held_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = key_of(os.getpid())
    assert key is not None
    other = ProcessKey(key.pid, key.start_ticks + 1)
    driver, now = Driver(), [key]
    monkeypatch.setattr(module, "key_of", lambda pid: now[0])
    monkeypatch.setattr(module, "has_ended", lambda process: process != now[0])
    monkeypatch.setattr(driver, "after_lock", lambda: now.__setitem__(0, other))
    heard: list[Notice] = []
    pauses = Pauses(PauseRecord.open(tmp_path / "paused"), {"cuda": driver}, "cuda", 10.0, heard.append)
    pauses.open_session(1)
    pauses.hold(key, 10.0, lambda: "GPU-0")
    assert driver.calls == ["lock", "unlock"]
    assert list((tmp_path / "paused").iterdir()) == []
    assert (pauses.list_paused(), heard) == ((), [])


@pytest.mark.parametrize(
    ("code", "is_done"),
    [(None, True), (Code.NOT_SUPPORTED, True), (Code.TIMEOUT, False), (Code.OPERATING_SYSTEM, False)],
)
def test_a_new_program_is_done_with_once_it_was_held_or_never_can_be(
    tmp_path: Path, code: Code | None, is_done: bool
) -> None:
    """A context that is still being made when the time is over is tried again."""

    class Refusing(Driver):
        def lock(self, pid: int, timeout_ms: int) -> Failure | None:
            return super().lock(pid, timeout_ms) if code is None else failure(code)

    key = key_of(os.getpid())
    assert key is not None
    driver = Refusing()
    pauses = Pauses(PauseRecord.open(tmp_path / "paused"), {"cuda": driver}, "cuda", 10.0, lambda notice: None)
    pauses.open_session(1)
    assert pauses.hold(key, 0.05, lambda: "GPU-0") is is_done
    assert driver.locked is (code is None)
    if code is None:
        assert pauses.unlock(key).failure is None
    assert list((tmp_path / "paused").iterdir()) == []


@pytest.mark.parametrize("call", ["lock", "hold", "unlock", "checkpoint", "restore"])
def test_an_unexpected_error_leaves_nothing_paused(tmp_path: Path, call: str) -> None:
    key = key_of(os.getpid())
    assert key is not None
    driver = FailingDriver()
    pauses = Pauses(PauseRecord.open(tmp_path / "paused"), {"cuda": driver}, "cuda", 600.0, lambda notice: None)
    pauses.start()
    pauses.open_session(1)
    if call not in ("lock", "hold"):
        assert pauses.lock(1, key, 100, "", time.monotonic() + 10).failure is None
    if call == "restore":
        assert pauses.checkpoint(key, 1).failure is None
    driver.fails_in = call
    calls: dict[str, Callable[[], object]] = {
        "lock": lambda: pauses.lock(1, key, 100, "", time.monotonic() + 10),
        "hold": lambda: pauses.hold(key, 10.0, driver.gpu_of),
        "unlock": lambda: pauses.unlock(key),
        "checkpoint": lambda: pauses.checkpoint(key, 1),
        "restore": lambda: pauses.restore(key),
    }
    with pytest.raises(RuntimeError):
        calls[call]()
    until(lambda: not driver.locked and pauses.list_paused() == (), "it runs, and is not in the table")
    assert list((tmp_path / "paused").iterdir()) == []
    driver.fails_in = ""
    assert pauses.lock(1, key, 100, "", time.monotonic() + 10).failure is None, "it can be paused again"
    assert pauses.unlock(key).failure is None


class FailingDriver(Driver):
    """One call ends in an error that is not of the driver, after it has been carried out."""

    fails_in = ""
    unlocks_failed = 0

    def _fail(self, call: str) -> None:
        if self.fails_in == call:
            raise RuntimeError(call)

    def lock(self, pid: int, timeout_ms: int) -> Failure | None:
        super().lock(pid, timeout_ms)
        self._fail("lock")
        return None

    def unlock(self, pid: int) -> Failure | None:
        if self.fails_in == "unlock" and self.unlocks_failed < 3:
            # First for its caller, then for the thread that releases it.
            self.unlocks_failed += 1
            raise RuntimeError("unlock")
        return super().unlock(pid)

    def checkpoint(self, pid: int) -> Failure | None:
        self._fail("checkpoint")
        return super().checkpoint(pid)

    def restore(self, pid: int) -> Failure | None:
        super().restore(pid)
        self._fail("restore")
        return None

    def gpu_of(self) -> str:
        if self.locked:
            self._fail("hold")
        return "GPU-0"


@pytest.mark.parametrize("call", ["unlock", "checkpoint", "restore"])
def test_a_process_with_the_pid_of_a_paused_one_that_ended_is_not_touched(tmp_path: Path, call: str) -> None:
    """Another program may have paused it, or may be moving its memory."""
    ours = subprocess.Popen(["sleep", "600"])
    key = key_of(ours.pid)
    assert key is not None
    driver = Driver()
    pauses = Pauses(PauseRecord.open(tmp_path / "paused"), {"cuda": driver}, "cuda", 10.0, lambda notice: None)
    pauses.open_session(1)
    assert pauses.lock(1, key, 100, "", time.monotonic() + 10).failure is None
    if call == "restore":
        assert pauses.checkpoint(key, 1).failure is None
    driver.calls.clear()
    ours.kill()
    ours.wait()
    calls = {
        "unlock": lambda: pauses.unlock(key),
        "checkpoint": lambda: pauses.checkpoint(key, 1),
        "restore": lambda: pauses.restore(key),
    }
    result = calls[call]()
    assert result.failure is not None
    assert result.failure.code == Code.GONE
    assert driver.calls == []
    assert list((tmp_path / "paused").iterdir()) == []
    assert pauses.list_paused() == ()


def test_what_an_earlier_agent_asked_for_is_not_carried_out(tmp_path: Path) -> None:
    key = key_of(os.getpid())
    assert key is not None
    driver = Driver()
    pauses = Pauses(PauseRecord.open(tmp_path / "paused"), {"cuda": driver}, "cuda", 10.0, lambda notice: None)
    pauses.open_session(1)
    pauses.close_session("the agent has ended")
    pauses.open_session(2)
    result = pauses.lock(1, key, 100, "", time.monotonic() + 10)
    assert result.failure is not None
    assert result.failure.code == Code.UNAVAILABLE
    result = pauses.lock(2, key, 100, "", time.monotonic() - 1)
    assert result.failure is not None
    assert result.failure.code == Code.DEADLINE
    assert driver.calls == []


def test_a_pause_that_is_kept_outlasts_the_longest_time_and_ends_without_keeping(tmp_path: Path) -> None:
    key = key_of(os.getpid())
    assert key is not None
    driver, notices = Driver(), list[Notice]()
    pauses = Pauses(PauseRecord.open(tmp_path / "paused"), {"cuda": driver}, "cuda", 1.0, notices.append)
    pauses.start()
    pauses.open_session(1)
    begun_s = time.monotonic()
    assert pauses.lock(1, key, 100, "", begun_s + 10).failure is None
    while time.monotonic() < begun_s + 2.5:
        assert pauses.keep(key).failure is None
        time.sleep(0.05)
    assert driver.locked
    assert pauses.list_paused()[0].age_s >= 2.5
    until(lambda: notices, "without keeping, it is resumed")
    assert not driver.locked
    kept = pauses.keep(key).failure
    assert kept is not None
    assert kept.code == Code.NOT_PAUSED


def test_a_pause_that_is_kept_ends_with_the_connection(tmp_path: Path) -> None:
    key = key_of(os.getpid())
    assert key is not None
    driver = Driver()
    pauses = Pauses(PauseRecord.open(tmp_path / "paused"), {"cuda": driver}, "cuda", 10.0, lambda notice: None)
    pauses.start()
    pauses.open_session(1)
    assert pauses.lock(1, key, 100, "", time.monotonic() + 10).failure is None
    assert pauses.keep(key).failure is None
    pauses.close_session("the agent has ended")
    kept = pauses.keep(key).failure
    assert kept is not None
    assert kept.code in (Code.BUSY, Code.NOT_PAUSED)
    assert pauses.wait_released(10)
    assert not driver.locked
