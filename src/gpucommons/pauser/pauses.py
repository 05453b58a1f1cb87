"""The programs that this pauser holds, and the calls that pause and resume them.

Every hold is in the record before its lock and until its release. A hold that is overdue or revoked is released by a
thread of its own, so that a call that hangs for one program keeps no other waiting. A stopped program gets no call; one
that is found stopped while it is paused, or whose call hangs, is revoked: it is resumed as soon as it goes on. Driver
calls and file writes are made without the table's lock.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final

from gpucommons.model.process_identity import ProcessKey
from gpucommons.pauser.backend import Code, Failure, PauseBackend, State, failure
from gpucommons.pauser.holdback import HoldBack
from gpucommons.pauser.looks import HeldUp, Looks
from gpucommons.pauser.protocol import LATE_S, Notice, NoticeKind, Paused
from gpucommons.pauser.record import Entry, PauseRecord, Stage
from gpucommons.pauser.release import FINAL, UNFINISHED, Attempt, Outcome, attempt, has_ended, key_of
from gpucommons.pauser.suspension import Suspensions

MAX_HOLDS: Final = 1024
# How long after its timeout a lock may still be carried out by the driver when its caller has died.
SETTLE_S: Final = 0.25
_FIRST_RETRY_S: Final = 0.005
_LAST_RETRY_S: Final = 0.1
_LOOK_S: Final = 0.5
# How long the driver takes for a call that waits for nothing.
_SHORT_CALL_S: Final = 0.2
# A new program: it has no work submitted, and is not ready for some milliseconds.
_HOLD_TIMEOUT_MS: Final = 200
_HOLD_AGAIN_S: Final = 0.002
# How often it is looked whether a process that has opened a GPU's files uses CUDA: 10 ms before the lock may succeed.
_HOLD_LOOK_S: Final = 0.005
# Whatever else the driver answers while a program starts may pass.
_NOT_TO_BE_HELD: Final = frozenset({Code.NOT_SUPPORTED, Code.WRONG_STATE})
# How long a program that yields to another may take to stop: later than this, it is not worth it. It is tried again
# later, or soon where it was being resumed.
_HOLD_BACK_MS: Final = 100
_HOLD_BACK_AGAIN_S: Final = 0.5
_HOLD_BACK_SOON_S: Final = 0.02

# The driver refused before it touched the process, so that it runs even if its state cannot be asked for either.
_NEVER_LOCKED: Final = frozenset({Code.NOT_CUDA, Code.OPERATING_SYSTEM, Code.NOT_SUPPORTED, Code.REFUSED})
_LONG_STAGES: Final = frozenset({Stage.CHECKPOINTING, Stage.RESTORING})
_EXEMPT: Final = _LONG_STAGES | {Stage.PARKED}


@dataclass(slots=True)
class _Hold:
    """`since_s` is when its lock was asked for, `asked_s` when the agent last asked for it to stay paused.

    `busy`: a thread is inside a call for it.

    `revoked`: to be released. `releasing`: a thread is at it. `reason` is why, for the notice; empty: there is none.
    `stopped`: it is released when its user continues it.

    `for_agent`: the agent asked for it; `for_guard`: another program works that it yields to. It is released when
    neither is so any more.
    """

    entry: Entry
    since_s: float
    asked_s: float
    busy: bool = True
    revoked: bool = False
    releasing: bool = False
    stopped: bool = False
    reason: str = ""
    for_agent: bool = True
    for_guard: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    failure: Failure | None = None
    duration_s: float = 0.0
    state: State | None = None


# Answers the agent before the call has returned.
AnswerEarly = Callable[[Failure], None]


def _no_answer(_: Failure) -> None:
    return


class Pauses:
    """`backends` are those at hand, `backend` the one that pauses; the others resume what an earlier pauser paused.

    `session` is a number that changes with every connection: what an earlier agent asked for is not carried out.
    """

    def __init__(
        self,
        record: PauseRecord,
        backends: Mapping[str, PauseBackend],
        backend: str,
        max_pause_s: float,
        notify: Callable[[Notice], None],
    ) -> None:
        self._record = record
        self._backends = backends
        self._backend = backends[backend]
        self._max_pause_s = max_pause_s
        self._notify = notify
        self._holds: dict[int, _Hold] = {}
        self._resting: dict[ProcessKey, float] = {}
        self._session: int | None = None
        self.suspensions = Suspensions()
        self._looks = Looks(
            self._report_obstacle, self._is_held, self.suspensions.lets_run, stops=self._backend.hangs_on_stopped
        )
        self._holdback = HoldBack(self._hold_back, self._end_hold_back, self._report_hold_back)
        self.watched_s = time.monotonic()
        lock = threading.Lock()
        self._changed = threading.Condition(lock)
        # The watchdog sleeps on one of its own: it is not woken by ordinary locks and unlocks, several a second.
        self._due = threading.Condition(lock)

    def start(self) -> int:
        """Takes over what the record holds, to be released, and starts to watch the holds. How many there were.

        What was paused by calls that are not at hand stays in the record for a pauser that has them.
        """
        now_s = time.monotonic()
        for entry in self._record.entries():
            if entry.backend in self._backends:
                revoked = entry.stage is not Stage.PARKED
                self._holds[entry.pid] = _Hold(entry, now_s, now_s, False, revoked, reason="left by an earlier pauser")
        count = len(self._holds)
        self._looks.start()
        self._holdback.start()
        threading.Thread(target=self._watch, name="watch", daemon=True).start()
        return count

    @property
    def lively_s(self) -> float:
        """Since when all of its own threads have gone on."""
        return min(self.watched_s, self._looks.looked_s, self._holdback.looked_s)

    # -- sessions

    def open_session(self, session: int) -> None:
        with self._changed:
            self._session = session

    def close_session(self, reason: str) -> None:
        """Nothing is paused from now on, and everything that is paused is released."""
        with self._changed:
            self._session = None
            self._revoke_all(reason)
        self._holdback.clear()
        self._looks.unwatch_all()
        self.suspensions.leave_all()

    def resume_all(self) -> None:
        with self._changed:
            self._revoke_all("asked to resume all")

    def wait_released(
        self, within_s: float, *, long_within_s: float = 0.0, waits: Callable[[], None] = lambda: None
    ) -> bool:
        """Whether nothing is left but parked programs, and stopped ones. A checkpoint or restore under way is given
        longer. `waits` is called again and again meanwhile."""
        begun = time.monotonic()
        with self._changed:
            while left := [h for h in self._holds.values() if h.entry.stage is not Stage.PARKED and not h.stopped]:
                waits()
                is_long = any(hold.busy and hold.entry.stage in _LONG_STAGES for hold in left)
                remaining_s = begun + (max(within_s, long_within_s) if is_long else within_s) - time.monotonic()
                if remaining_s <= 0:
                    return False
                self._changed.wait(min(remaining_s, 0.1))
        return True

    def list_paused(self) -> tuple[Paused, ...]:
        now_s = time.monotonic()
        with self._changed:
            return tuple(
                Paused(key, hold.entry.stage, now_s - hold.since_s, hold.entry.gpu, hold.entry.memory_bytes)
                for hold in self._holds.values()
                if (key := hold.entry.key) is not None
            )

    def watch(self, key: ProcessKey) -> Result:
        """Report when it is stopped, and when it goes on."""
        return Result(None if self._looks.watch(key) else failure(Code.REFUSED, "too many programs are watched"))

    def unwatch(self, key: ProcessKey) -> Result:
        self._looks.unwatch(key)
        return Result()

    # -- programs that are held back while another one works

    def guard(self, key: ProcessKey, group: str, share_percent: int) -> Result:
        return _naming_result(self._holdback.guard(key, group, share_percent / 100))

    def yield_to(self, key: ProcessKey, group: str) -> Result:
        return _naming_result(self._holdback.yield_to(key, group))

    def leave_groups(self, key: ProcessKey) -> Result:
        self._holdback.leave(key)
        return Result()

    def _hold_back(self, key: ProcessKey) -> float | None:
        """After how long to try again; None: it is paused."""
        with self._changed:
            session, hold = self._session, self._holds.get(key.pid)
            if hold is not None and hold.entry.key == key and not hold.revoked:
                # Where the agent is about to resume it, that comes first.
                hold.for_guard = hold.for_agent
                return None if hold.for_agent else _HOLD_BACK_SOON_S
        if session is None:
            return _HOLD_BACK_AGAIN_S
        until_s = time.monotonic() + _HOLD_BACK_MS / 1000 + LATE_S
        failed = self.lock(session, key, _HOLD_BACK_MS, "", until_s, for_agent=False).failure
        return None if failed is None else _HOLD_BACK_AGAIN_S

    def _end_hold_back(self, key: ProcessKey) -> None:
        with self._changed:
            hold = self._holds.get(key.pid)
            if hold is None or hold.entry.key != key:
                return
            hold.for_guard = False
            if hold.for_agent or hold.busy or hold.revoked or hold.entry.stage is not Stage.LOCKED:
                # Whatever is under way for it looks at this when it is done.
                return
            hold.busy = True
        self._unlock(hold, key)

    def _report_hold_back(self, key: ProcessKey, begins: bool, seconds: float) -> None:
        kind = NoticeKind.HOLDS_BACK if begins else NoticeKind.HELD_BACK
        self._notify(Notice(key, "", kind, seconds))

    # -- the calls of the agent, each on a thread of its own

    def lock(
        self,
        session: int,
        key: ProcessKey,
        timeout_ms: int,
        gpu: str,
        until_s: float,
        answer_early: AnswerEarly = _no_answer,
        *,
        for_agent: bool = True,
    ) -> Result:
        """`until_s` is when the agent gives up waiting for the reply: a lock that comes later is undone."""
        timeout_ms = min(timeout_ms, max(1, int(self._max_pause_s * 1000)))
        if for_agent and self._takes_over(key, until_s):
            return Result()
        now_s = time.monotonic()
        if now_s >= until_s:
            return Result(failure(Code.DEADLINE, "no thread was free"))
        if (stopped := self._why_not(key)) is not None:
            return Result(stopped)
        settles_at_s = now_s + timeout_ms / 1000 + SETTLE_S
        entry = Entry(key.pid, key.start_ticks, Stage.LOCKING, self._backend.name, settles_at_s, gpu)
        hold = self._begin(session, entry, now_s, for_agent=for_agent)
        if isinstance(hold, Failure):
            return Result(hold)
        with self._released_after_error(hold):
            try:
                self._record.write(entry)
            except OSError as error:
                self._forget(hold)
                return Result(failure(Code.RECORD, f"{self._record.path}: {error.strerror}"))
            if key_of(key.pid) != key:
                self._forget(hold)
                return Result(failure(Code.GONE))
            begun_s = time.monotonic()
            with self._looks.call(key, timeout_ms / 1000, lambda obstacle: self._give_up(hold, obstacle, answer_early)):
                failed = self._backend.lock(key.pid, timeout_ms)
            duration_s = time.monotonic() - begun_s
            if key_of(key.pid) != key:
                # The pid may have been reused between the check and the call: then another program was paused.
                if failed is None:
                    self._backend.unlock(key.pid)
                self._forget(hold)
                return Result(failure(Code.GONE), duration_s)
            if failed is None:
                return Result(self._finish_lock(hold, until_s), duration_s)
            if failed.code in (Code.WRONG_STATE, Code.STOPPED):
                # Paused or stopped by something else, which will resume it.
                self._forget(hold)
            else:
                self._let_go(hold, surely_runs=failed.code in _NEVER_LOCKED)
            return Result(failed, duration_s)

    def hold(self, key: ProcessKey, within_s: float, gpu_of: Callable[[], str | None]) -> bool:
        """Locks a program that makes a context once the driver can, and reports it to the agent.

        `gpu_of` names its GPU: empty while it is not to be held yet, None where it is not to be held at all. Returns
        whether it was held, or never can be.
        """
        session = self._session
        until_s = time.monotonic() + min(within_s, self._max_pause_s / 2)
        if session is None:
            return False
        timeout_s = _HOLD_TIMEOUT_MS / 1000
        entry = Entry(key.pid, key.start_ticks, Stage.LOCKING, self._backend.name, until_s + timeout_s + SETTLE_S)
        hold = self._begin(session, entry, time.monotonic())
        if isinstance(hold, Failure):
            return False
        with self._released_after_error(hold):
            try:
                self._record.write(entry)
            except OSError:
                self._forget(hold)
                return False
            failed: Failure | None = failure(Code.NOT_CUDA)
            while failed is not None and failed.code not in _NOT_TO_BE_HELD and time.monotonic() < until_s:
                if hold.revoked:
                    break
                gpu = gpu_of()
                if has_ended(key) or gpu is None or self._looks.why_not(key, every_thread=False) is not None:
                    break
                if not gpu:
                    time.sleep(_HOLD_LOOK_S)
                    continue
                with self._looks.call(key, timeout_s, lambda obstacle: self._give_up(hold, obstacle, _no_answer)):
                    failed = self._backend.lock(key.pid, _HOLD_TIMEOUT_MS)
                if failed is not None:
                    time.sleep(_HOLD_AGAIN_S)
            if failed is None and key_of(key.pid) != key:
                # As in `lock`: the pid may have been reused just before the call.
                self._backend.unlock(key.pid)
                self._forget(hold)
                return True
            gpu = gpu_of() if failed is None else None
            if failed is None and gpu and not has_ended(key):
                hold.entry = replace(entry, gpu=gpu)
                if self._finish_lock(hold, float("inf")) is None:
                    self._notify(Notice(key, gpu, NoticeKind.ARRIVED))
            elif failed is not None and failed.code == Code.WRONG_STATE:
                self._forget(hold)
            else:
                self._let_go(hold, surely_runs=failed is not None and failed.code in _NEVER_LOCKED)
            return failed is None or failed.code in _NOT_TO_BE_HELD

    def unlock(self, key: ProcessKey, answer_early: AnswerEarly = _no_answer) -> Result:
        """A stopped program is resumed when its user continues it; one that yields to another, when that rests."""
        if self._stays_for_guard(key):
            return Result()
        hold = self._take(key, Stage.LOCKED)
        return Result(hold) if isinstance(hold, Failure) else self._unlock(hold, key, answer_early)

    def _unlock(self, hold: _Hold, key: ProcessKey, answer_early: AnswerEarly = _no_answer) -> Result:
        with self._released_after_error(hold):
            if (stopped := self._why_not(key, every_thread=False)) is not None:
                self._revoke(hold, stopped=True)
                return Result(stopped)
            begun_s = time.monotonic()
            with self._looks.call(key, _SHORT_CALL_S, lambda obstacle: self._give_up(hold, obstacle, answer_early)):
                failed = self._backend.unlock(key.pid)
            duration_s = time.monotonic() - begun_s
            if failed is None:
                self._forget(hold)
                return Result(duration_s=duration_s)
            outcome = self._let_go(hold)
            if outcome in (Outcome.RESUMED, Outcome.RUNS):
                return Result(duration_s=duration_s)
            return Result(failure(Code.GONE) if outcome is Outcome.ENDED else failed, duration_s)

    def keep(self, key: ProcessKey) -> Result:
        """The pause may last `max_pause_s` from now on. No driver call: a driver that hangs delays no other program."""
        with self._changed:
            hold = self._holds.get(key.pid)
            if hold is None or hold.entry.key != key or hold.entry.stage is not Stage.LOCKED:
                return Result(failure(Code.NOT_PAUSED))
            if hold.revoked:
                return Result(failure(Code.BUSY, "it is being resumed"))
            hold.asked_s = time.monotonic()
            return Result()

    def checkpoint(self, key: ProcessKey, memory_bytes: int) -> Result:
        if (stopped := self._why_not(key)) is not None:
            return Result(stopped)
        hold = self._take(key, Stage.LOCKED)
        if isinstance(hold, Failure):
            return Result(hold)
        return self._move(hold, replace(hold.entry, stage=Stage.CHECKPOINTING, memory_bytes=memory_bytes), Stage.PARKED)

    def restore(self, key: ProcessKey) -> Result:
        if (stopped := self._why_not(key)) is not None:
            return Result(stopped)
        hold = self._take(key, Stage.PARKED)
        if isinstance(hold, Failure):
            return Result(hold)
        return self._move(hold, replace(hold.entry, stage=Stage.RESTORING), Stage.LOCKED)

    def state(self, key: ProcessKey, answer_early: AnswerEarly = _no_answer) -> Result:
        if key_of(key.pid) != key:
            return Result(failure(Code.GONE))
        if (stopped := self._why_not(key)) is not None:
            return Result(stopped)
        begun_s = time.monotonic()
        with self._looks.call(key, _SHORT_CALL_S, answer_early):
            state = self._backend.state(key.pid)
        duration_s = time.monotonic() - begun_s
        return Result(state, duration_s) if isinstance(state, Failure) else Result(None, duration_s, state)

    # -- programs that do not go on

    def _why_not(self, key: ProcessKey, *, every_thread: bool = True) -> Failure | None:
        """Why it gets no call now."""
        obstacle = self._looks.why_not(key, every_thread=every_thread)
        if obstacle is not None:
            self._looks.report(key, obstacle)
        return obstacle

    def _give_up(self, hold: _Hold, obstacle: Failure, answer_early: AnswerEarly) -> None:
        """Its call has not returned. What comes of it is undone; meanwhile it is tried to resume it all the same."""
        with self._changed:
            hold.revoked = True
            hold.stopped = obstacle.code == Code.STOPPED
            self._changed.notify_all()
            self._due.notify_all()
        answer_early(obstacle)

    def _report_obstacle(self, key: ProcessKey, obstacle: HeldUp) -> None:
        """A watched program was stopped, does not answer the driver, or goes on."""
        if obstacle is None:
            self._notify(Notice(key, "it goes on", NoticeKind.GOES_ON))
            return
        is_stopped = obstacle.code == Code.STOPPED
        with self._changed:
            hold = self._holds.get(key.pid)
            paused = hold is not None and hold.entry.key == key and hold.entry.stage is Stage.LOCKED
            if hold is not None and paused and is_stopped and not hold.busy and not hold.revoked:
                # Its turn may come while it is stopped: it is resumed when it goes on, and then takes part again.
                hold.revoked, hold.stopped = True, True
                self._due.notify_all()
        self._notify(Notice(key, obstacle.meaning, NoticeKind.STOPPED if is_stopped else NoticeKind.HANGS))

    def _is_held(self, key: ProcessKey) -> bool:
        with self._changed:
            hold = self._holds.get(key.pid)
            return hold is not None and hold.entry.key == key and hold.revoked

    # -- their steps

    def _takes_over(self, key: ProcessKey, until_s: float) -> bool:
        """Whether it was held back for another program, and stays paused for the agent, too."""
        with self._changed:
            while True:
                hold = self._holds.get(key.pid)
                if hold is None or hold.entry.key != key or hold.for_agent or hold.revoked:
                    return False
                if not hold.busy and hold.entry.stage is Stage.LOCKED:
                    hold.for_agent, hold.asked_s = True, time.monotonic()
                    return True
                if not self._changed.wait(max(0.0, min(0.05, until_s - time.monotonic()))) and (
                    time.monotonic() >= until_s
                ):
                    return False

    def _stays_for_guard(self, key: ProcessKey) -> bool:
        """Whether the agent's pause of it has ended, and it is still held back for another program."""
        with self._changed:
            hold = self._holds.get(key.pid)
            if hold is None or hold.entry.key != key or hold.entry.stage is not Stage.LOCKED:
                return False
            hold.for_agent = False
            return hold.for_guard and not hold.busy and not hold.revoked

    def _begin(self, session: int, entry: Entry, now_s: float, *, for_agent: bool = True) -> _Hold | Failure:
        with self._changed:
            if session != self._session:
                return failure(Code.UNAVAILABLE, "the pauser is stopping or the agent's connection has ended")
            if entry.pid in self._holds:
                return failure(Code.BUSY, f"pid {entry.pid} is {self._holds[entry.pid].entry.stage}")
            if len(self._holds) >= MAX_HOLDS:
                return failure(Code.REFUSED, f"{MAX_HOLDS} programs are paused already")
            self._resting = {key: until_s for key, until_s in self._resting.items() if until_s > now_s}
            if entry.key in self._resting:
                return failure(Code.RESTING)
            hold = _Hold(entry, now_s, now_s, for_agent=for_agent, for_guard=not for_agent)
            self._holds[entry.pid] = hold
            return hold

    def _take(self, key: ProcessKey, stage: Stage) -> _Hold | Failure:
        """The hold of this program, in this stage, for a call on it. A process that has its pid now is not touched."""
        hold = self._find(key, stage)
        if isinstance(hold, _Hold) and has_ended(key):
            self._forget(hold)
            return failure(Code.GONE)
        return hold

    def _find(self, key: ProcessKey, stage: Stage) -> _Hold | Failure:
        with self._changed:
            hold = self._holds.get(key.pid)
            if hold is None or hold.entry.key != key:
                return failure(Code.NOT_PAUSED)
            if hold.busy or hold.revoked:
                return failure(Code.BUSY, "it is being resumed" if hold.revoked else f"it is {hold.entry.stage}")
            if hold.entry.backend != self._backend.name:
                return failure(Code.UNAVAILABLE, f"it was paused by {hold.entry.backend}")
            if hold.entry.stage is not stage:
                return failure(Code.WRONG_STATE, f"it is {hold.entry.stage}, not {stage}")
            hold.busy = True
            return hold

    def _finish_lock(self, hold: _Hold, until_s: float) -> Failure | None:
        """The lock succeeded. While the call was under way the hold may have been revoked, or the agent given up."""
        self._write(hold, replace(hold.entry, stage=Stage.LOCKED))
        is_late = time.monotonic() >= until_s
        with self._changed:
            if not hold.revoked and not is_late and (hold.for_agent or hold.for_guard):
                hold.busy = False
                self._changed.notify_all()
                return None
        self._let_go(hold)
        if is_late:
            return failure(Code.DEADLINE, "the driver's call")
        return failure(Code.UNAVAILABLE, hold.reason) if hold.reason else failure(Code.HANGS)

    def _move(self, hold: _Hold, begun: Entry, reached: Stage) -> Result:
        """Checkpoint or restore, and the stage that came of it by the driver's own word."""
        backend, pid = self._backend, begun.pid
        try:
            self._record.write(begun)
        except OSError as error:
            with self._changed:
                hold.busy = False
            return Result(failure(Code.RECORD, f"{self._record.path}: {error.strerror}"))
        with self._changed:
            hold.entry = begun
        with self._released_after_error(hold):
            begun_s = time.monotonic()
            failed = backend.checkpoint(pid) if reached is Stage.PARKED else backend.restore(pid)
            duration_s = time.monotonic() - begun_s
            stage = reached
            if failed is not None:
                state = backend.state(pid)
                stage = Stage.PARKED if state in (State.CHECKPOINTED, State.FAILED) else Stage.LOCKED
            self._write(hold, replace(begun, stage=stage))
        with self._changed:
            hold.since_s = hold.asked_s = time.monotonic()
            hold.busy = False
            hold.revoked = hold.revoked and stage is not Stage.PARKED
            self._changed.notify_all()
            self._due.notify_all()
        return Result(failed, duration_s)

    def _let_go(self, hold: _Hold, *, surely_runs: bool = False) -> Outcome:
        """After a call of ours has returned: release at once if possible, else leave it to a thread of its own."""
        attempted = attempt(self._backends, hold.entry, settled=True)
        if attempted.outcome in FINAL or (surely_runs and attempted.outcome in UNFINISHED):
            self._forget(hold)
        else:
            with self._changed:
                hold.busy = False
                hold.revoked = True
                hold.stopped = attempted.outcome is Outcome.STOPPED
                if not hold.stopped:
                    hold.reason = hold.reason or attempted.detail
                self._due.notify_all()
        return attempted.outcome

    @contextmanager
    def _released_after_error(self, hold: _Hold) -> Iterator[None]:
        """Around what a thread does for a hold: where that ends in an unexpected error, another thread releases it."""
        try:
            yield
        except BaseException:
            self._revoke(hold)
            raise

    def _revoke(self, hold: _Hold, *, stopped: bool = False) -> None:
        """A thread of its own releases it; a stopped program as soon as its user continues it."""
        with self._changed:
            hold.busy, hold.revoked, hold.stopped = False, True, stopped
            self._changed.notify_all()
            self._due.notify_all()

    def _forget(self, hold: _Hold) -> None:
        """It runs: take it out of the record, then out of the table, so that no new lock comes between."""
        # Where that fails the entry stays, and its next reader finds that the program runs.
        with suppress(OSError):
            self._record.remove(hold.entry.pid)
        with self._changed:
            if self._holds.get(hold.entry.pid) is hold:
                del self._holds[hold.entry.pid]
            self._changed.notify_all()

    def _write(self, hold: _Hold, entry: Entry) -> None:
        """A later stage of a program that is in the record already; an older stage is as safe."""
        with suppress(OSError):
            self._record.write(entry)
        with self._changed:
            hold.entry = entry

    # -- the thread that watches the holds

    def _revoke_all(self, reason: str) -> None:
        for hold in self._holds.values():
            if hold.entry.stage is not Stage.PARKED and not hold.revoked:
                hold.revoked, hold.reason = True, reason
        self._due.notify_all()

    def _watch(self) -> None:
        ended_next_s = 0.0
        while True:
            self.watched_s = time.monotonic()
            if time.monotonic() >= ended_next_s:
                self._forget_ended()
                ended_next_s = time.monotonic() + _LOOK_S
            with self._changed:
                now_s = time.monotonic()
                self._revoke_overdue(now_s)
                due = [hold for hold in self._holds.values() if _is_due(hold)]
                for hold in due:
                    hold.releasing = True
                if not due:
                    self._due.wait(self._next_look_s(now_s))
            for hold in due:
                try:
                    threading.Thread(target=self._release, args=(hold,), name="release", daemon=True).start()
                except RuntimeError:
                    # No thread can be had just now: try again soon.
                    hold.releasing = False
                    time.sleep(_FIRST_RETRY_S)

    def _forget_ended(self) -> None:
        """Programs that ended while they were paused or parked leave the record."""
        with self._changed:
            resting = [hold for hold in self._holds.values() if not hold.busy and not hold.revoked]
        for hold in resting:
            key = hold.entry.key
            if key is not None and has_ended(key) and self._claim(hold):
                self._forget(hold)

    def _claim(self, hold: _Hold) -> bool:
        with self._changed:
            free = not hold.busy and not hold.revoked and self._holds.get(hold.entry.pid) is hold
            hold.busy = hold.busy or free
            return free

    def _revoke_overdue(self, now_s: float) -> None:
        for hold in self._holds.values():
            too_long = now_s - hold.asked_s >= self._max_pause_s
            if too_long and not hold.revoked and hold.entry.stage not in _EXEMPT:
                hold.revoked, hold.reason = True, f"paused for {self._max_pause_s:g} s, the longest time allowed"
                if (key := hold.entry.key) is not None:
                    self._resting[key] = now_s + self._max_pause_s

    def _next_look_s(self, now_s: float) -> float:
        asked_s = [h.asked_s for h in self._holds.values() if not h.revoked and h.entry.stage not in _EXEMPT]
        return max(0.001, min(_LOOK_S, min(asked_s, default=now_s) + self._max_pause_s - now_s))

    def _release(self, hold: _Hold) -> None:
        """Until it runs, however often that takes. A thread that is inside a call for it has the last word."""
        pause_s = _FIRST_RETRY_S
        while True:
            with self._changed:
                if self._holds.get(hold.entry.pid) is not hold:
                    break
                entry, was_busy = hold.entry, hold.busy
            if not (was_busy and entry.stage in _LONG_STAGES):
                settled = not was_busy and time.monotonic() >= entry.settles_at_s
                try:
                    attempted = attempt(self._backends, entry, settled=settled)
                except Exception as error:
                    # Without this thread it would stay paused.
                    hold.reason = f"after an unexpected error: {error!r}"
                else:
                    if self._is_over(hold, attempted):
                        break
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LAST_RETRY_S)
        key = hold.entry.key
        if key is not None and hold.reason:
            self._notify(Notice(key, hold.reason))

    def _is_over(self, hold: _Hold, attempted: Attempt) -> bool:
        with self._changed:
            hold.stopped = attempted.outcome is Outcome.STOPPED
            if hold.busy or attempted.outcome in UNFINISHED:
                return False
            if attempted.outcome not in FINAL:
                hold.entry = replace(hold.entry, stage=Stage.PARKED)
                hold.revoked = hold.releasing = False
        if attempted.outcome in FINAL:
            self._forget(hold)
        else:
            self._write(hold, hold.entry)
        return True


def _naming_result(done: bool) -> Result:
    return Result(None if done else failure(Code.REFUSED, "too many programs are named"))


def _is_due(hold: _Hold) -> bool:
    return hold.revoked and not hold.releasing
