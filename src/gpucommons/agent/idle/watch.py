"""Idle holders in the agent: the steps that each snapshot makes due become messages, events and actions.

Nothing here blocks the agent: files are written on a thread of their own, and each channel has one.
"""

import asyncio
import logging
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from functools import partial
from typing import Final, NamedTuple

from gpucommons.agent.idle.channels import address_of, check_idle, idle_channels
from gpucommons.agent.idle.holders import (
    build_held_idle,
    has_opt_out,
    holders_of,
    idle_periods,
    idle_rule,
    weekly_digest,
)
from gpucommons.base.processes import boot_id
from gpucommons.base.threads import WorkerThread
from gpucommons.config.settings import Settings
from gpucommons.config.state_directory import idle_record, ledger_file, own_event_log
from gpucommons.idle.channels import Delivery, Letter, Outbox
from gpucommons.idle.escalation import EscalationState, IdleHolder, find_due_steps, mark_reached
from gpucommons.idle.messages import (
    DAYS,
    DigestSchedule,
    HeldIdle,
    IdleAction,
    digest_due,
    event_sentence,
    gpus,
    subject_of,
    text_of,
)
from gpucommons.idle.record import IdleRecord, IdleRecordFile
from gpucommons.model.allocations import Allocation, AllocationReading, WorkloadKind
from gpucommons.model.events import iso_time
from gpucommons.model.idle import IdleEvent, IdleMessage, IdlePeriods, IdleReading, IdleStep
from gpucommons.model.snapshot import Readings, Snapshot
from gpucommons.owners.holding_stage import SETTLED_AFTER_S
from gpucommons.owners.slot_states import shortest_idle_s
from gpucommons.sources.source import Source, SourceStarting

_WRITE_EVERY_S: Final = 60.0
_DIGEST_EVERY_S: Final = 60.0
_KEPT_EVENTS: Final = 64
_KEPT_MESSAGES_S: Final = 7 * 86_400.0
_MAX_MESSAGES: Final = 500
_MAX_OF_USER: Final = 10
# How long the message that the agent has acted counts as new.
_ACTED_IS_NEW_S: Final = 86_400.0
_STOP_WITHIN_S: Final = 2.0
_TYPES: Final = {IdleStep.NOTIFY: "idle.notified", IdleStep.REMIND: "idle.reminded", IdleStep.ACT: "idle.acted"}
_FAILED: Final = "idle.failed"

log = logging.getLogger(__name__)

Done = Callable[[str], None]
"""Gets why an action failed; empty if it did not. Called on another thread."""
ParkProcesses = Callable[[AbstractSet[int], Done], None]
EndLease = Callable[[str, str, Done], None]


class _Action(NamedTuple):
    """An action on an idle holder; when it is done, `problem` is why it failed."""

    held: HeldIdle
    address: str
    notified_s: float
    problem: str = ""


class IdleWatch:
    """`park` and `end_lease` are None where the agent has no such service. Raises ConfigError."""

    def __init__(
        self,
        settings: Settings,
        scenario: str | None,
        hostname: str,
        park: ParkProcesses | None = None,
        end_lease: EndLease | None = None,
    ) -> None:
        check_idle(settings)
        idle = settings.idle
        self._settings = settings
        self._hostname = hostname
        self._park, self._end_lease = park, end_lease
        self._action = IdleAction(idle.act)
        self._rules = tuple(settings.idle_rules.values())
        self._files = (ledger_file(settings, scenario), own_event_log(settings, scenario))
        # The users of a simulation do not exist: nothing is sent to them.
        channels = idle_channels(settings) if scenario is None and idle.after_s else ()
        self._outcomes: queue.SimpleQueue[Delivery | _Action] = queue.SimpleQueue()
        self._outboxes = [Outbox(channel, self._outcomes.put) for channel in channels]
        self._file = IdleRecordFile(idle_record(scenario), boot_id())
        self._before: IdlePeriods = {}
        self._escalation: EscalationState = {}
        # Holders of an earlier agent that no source has reported yet.
        self._unseen: frozenset[str] = frozenset()
        self._messages: tuple[IdleMessage, ...] = ()
        self._digest = ""
        self._allocations: AllocationReading | None = None
        self._idle_holders = 0
        self._steps: Counter[IdleStep] = Counter()
        self._events: deque[IdleEvent] = deque(maxlen=_KEPT_EVENTS)
        self._numbered = 0
        self._first_s: float | None = None
        self._written_s = self._digest_looked_s = 0.0
        self._thread = WorkerThread("idle-record")
        self._started = False

    def idle_before(self) -> IdlePeriods:
        """The idle periods that an earlier agent has seen."""
        return self._before

    # A part of the agent

    def sources(self) -> list[Source]:
        if not self._settings.idle.after_s:
            return []
        cadence_s = self._settings.sampling.interval_s
        return [Source("idle", "idle", IdleReading, self._read, cadence_s, runs_on="loop")]

    async def start(self) -> None:
        if not self._settings.idle.after_s:
            return
        record = await asyncio.to_thread(self._file.read, time.time())
        self._before = record.periods
        self._escalation, self._messages, self._digest = record.escalation, record.messages, record.digest
        self._unseen = frozenset(record.escalation)
        if record.unsent:
            # First recorded as sent: after a crash they are not sent twice.
            self._write()
        for outbox in self._outboxes:
            outbox.start()
            for letter in record.unsent.get(outbox.name, ()):
                self._send(outbox, letter)
        self._started = True

    async def stop(self) -> None:
        if not self._started:
            return
        self._started = False
        unsent = await asyncio.to_thread(self._close_outboxes)
        self._take_outcomes(time.time())
        if self._first_s is not None or any(unsent.values()):
            self._write(unsent)
        await asyncio.to_thread(self._thread.close, _STOP_WITHIN_S)

    def _read(self) -> IdleReading:
        if not self._started:
            raise SourceStarting("messages are made by a running agent")
        return IdleReading(
            self._settings.idle.after_s,
            self._action.value,
            self._idle_holders,
            {step: self._steps[step] for step in IdleStep},
            self._messages,
            tuple(outbox.state for outbox in self._outboxes),
            tuple(self._events),
            self._file.writing,
        )

    # The escalation

    def observe(self, snapshot: Snapshot) -> None:
        """Called with every snapshot, on the event loop; does not block."""
        if not self._started:
            return
        now_s, wall_s = snapshot.monotonic_s, snapshot.wall_s
        self._take_outcomes(wall_s)
        readings = snapshot.readings
        # While no GPU is read, it is not known which holder is idle.
        if readings.gpus is not None and readings.allocations is not None:
            self._first_s = now_s if self._first_s is None else self._first_s
            if now_s - self._first_s >= SETTLED_AFTER_S:
                self._unseen = frozenset()
            self._escalate(readings, wall_s)
        # A machine without GPUs keeps no files.
        if self._first_s is None:
            return
        if now_s - self._written_s >= _WRITE_EVERY_S:
            self._written_s = now_s
            self._forget_messages(wall_s)
            self._write()
        if now_s - self._digest_looked_s >= _DIGEST_EVERY_S:
            self._digest_looked_s = now_s
            self._send_digest_if_due(wall_s)

    def _escalate(self, readings: Readings, wall_s: float) -> None:
        assert readings.allocations is not None
        rows = holders_of(readings.allocations)
        self._unseen -= rows.keys()
        may_be_missing = self._unseen if readings.allocations.complete else self._escalation.keys()
        holders = [self._holder(key, allocations, readings) for key, allocations in rows.items()]
        self._idle_holders = sum((holder.idle_s or 0.0) >= self._settings.idle.after_s for holder in holders)
        self._allocations = readings.allocations
        self._escalation, due = find_due_steps(holders, self._escalation, self._settings.idle, may_be_missing)
        idle_s = {holder.key: holder.idle_s for holder in holders}
        letters: list[Letter] = []
        actions: list[_Action] = []
        for holder, step in due:
            held = build_held_idle(holder.key, rows[holder.key], readings, self._park is not None)
            address = self._address(rows[holder.key][0])
            notified_s = self._escalation[holder.key].notified_s
            if step is IdleStep.ACT:
                actions.append(_Action(held, address, notified_s))
            else:
                letters.append(self._message(held, step, address, notified_s, wall_s, holder.can_act))
        self._mark_over(wall_s)
        if due:
            # What was delivered nowhere outside is at least shown by `gpucommons me`.
            for letter in letters:
                if not self._channels_of(letter):
                    self._escalation = mark_reached(
                        self._escalation, letter.holder, letter.notified_s, idle_s[letter.holder] or 0.0
                    )
            self._write_then(letters, actions)

    def _holder(self, key: str, rows: list[Allocation], readings: Readings) -> IdleHolder:
        idle_s = shortest_idle_s(rows)
        if idle_s is None or idle_s < self._settings.idle.after_s:
            return IdleHolder(key, idle_s)
        rule = idle_rule(rows[0], self._rules)
        is_exempt = (rule is not None and rule.leave_alone) or has_opt_out(rows[0], readings)
        return IdleHolder(key, idle_s, self._can_act(rows), is_exempt)

    def _can_act(self, rows: list[Allocation]) -> bool:
        if self._action is IdleAction.END_LEASE:
            return self._end_lease is not None and rows[0].kind is WorkloadKind.LEASE
        return self._action is IdleAction.PARK and self._park is not None and any(row.processes for row in rows)

    def _address(self, allocation: Allocation) -> str:
        rule = idle_rule(allocation, self._rules)
        return address_of(allocation.account.user, rule, self._settings.mail)

    # Messages

    def _message(
        self, held: HeldIdle, step: IdleStep, address: str, notified_s: float, wall_s: float, can_act: bool = False
    ) -> Letter:
        """Kept for the user, recorded as an event, and returned to be sent."""
        act_in_s = self._settings.idle.act_after_s if can_act else 0.0
        if step is IdleStep.REMIND:
            act_in_s = max(0.0, act_in_s - self._settings.idle.remind_after_s)
        text = text_of(held, step, self._action, act_in_s, self._hostname)
        self._steps[step] += 1
        if held.user:
            self._numbered += 1
            id = f"{iso_time(wall_s)}-{self._numbered:03}"
            self._messages = (IdleMessage(id, held.user, wall_s, step, text, held.key, notified_s), *self._messages)
        self._event(_TYPES[step], held, event_sentence(held))
        subject = subject_of(held, step, self._action, self._hostname)
        return Letter(subject, text, held.user, address, held.key, notified_s)

    def _event(self, type: str, held: HeldIdle, sentence: str) -> None:
        details = {
            "slot": ",".join(held.slots),
            "workload": held.name,
            "workload_id": held.workload_id,
            "idle_seconds": f"{held.idle_s:.0f}",
            "sentence": sentence,
        }
        self._add_event(type, held.user, details)

    def _add_event(self, type: str, user: str, details: Mapping[str, str]) -> None:
        self._numbered += 1
        self._events.appendleft(IdleEvent(str(self._numbered), type, user, details))

    def _channels_of(self, letter: Letter) -> list[Outbox]:
        return [outbox for outbox in self._outboxes if outbox.name != "email" or letter.address]

    def _mark_over(self, wall_s: float) -> None:
        if any(not message.over and self._is_over(message, wall_s) for message in self._messages):
            self._messages = tuple(
                message if message.over else message._replace(over=self._is_over(message, wall_s))
                for message in self._messages
            )

    def _is_over(self, message: IdleMessage, wall_s: float) -> bool:
        if message.step is IdleStep.ACT:
            return abs(wall_s - message.wall_s) >= _ACTED_IS_NEW_S
        done = self._escalation.get(message.holder)
        return done is None or done.notified_s != message.notified_s

    def _forget_messages(self, wall_s: float) -> None:
        of_user: Counter[str] = Counter()
        kept = []
        for message in self._messages[:_MAX_MESSAGES]:
            of_user[message.user] += 1
            if of_user[message.user] <= _MAX_OF_USER and wall_s - message.wall_s < _KEPT_MESSAGES_S:
                kept.append(message)
        self._messages = tuple(kept)

    # Actions and outcomes

    def _act(self, action: _Action) -> None:
        held = action.held

        def on_done(problem: str) -> None:
            self._outcomes.put(action._replace(problem=problem))

        if self._action is IdleAction.PARK and self._park is not None:
            self._park(frozenset(held.pids), on_done)
        elif self._end_lease is not None:
            why = f"ended: {gpus(held.slots)} had not been used for {held.idle_text}"
            self._end_lease(held.lease, why, on_done)

    def _take_outcomes(self, wall_s: float) -> None:
        while True:
            try:
                outcome = self._outcomes.get_nowait()
            except queue.Empty:
                return
            if isinstance(outcome, _Action):
                self._record_action(outcome, wall_s)
            elif not outcome.problem:
                self._record_delivery(outcome.letter)
            else:
                sentence = f"{outcome.letter.subject!r} was not delivered: {outcome.problem}"
                self._add_event(_FAILED, outcome.letter.user, {"channel": outcome.channel, "sentence": sentence})

    def _record_action(self, outcome: _Action, wall_s: float) -> None:
        held = outcome.held
        if outcome.problem:
            sentence = f"{held.subject} stays as it is: {outcome.problem}"
            log.warning("idle holders: %s of %s", sentence, held.account)
            self._event(_FAILED, held, sentence)
            return
        letter = self._message(held, IdleStep.ACT, outcome.address, outcome.notified_s, wall_s)
        log.info("idle holders: %s of %s: %s", held.subject, held.account, self._action.value)
        self._write_then([letter])

    def _record_delivery(self, letter: Letter) -> None:
        """The action is counted from here. The idle time is that of the last reading."""
        if not letter.holder:
            return
        rows = holders_of(self._allocations).get(letter.holder, []) if self._allocations else []
        idle_s = shortest_idle_s(rows) or letter.notified_s
        self._escalation = mark_reached(self._escalation, letter.holder, letter.notified_s, idle_s)

    # Files and the digest, on the thread

    def _write_then(self, letters: Sequence[Letter], actions: Sequence[_Action] = ()) -> None:
        """Recorded first: after a crash in between a message is missing, but none is sent twice."""
        self._write()
        for action in actions:
            self._thread.submit(partial(self._act, action))
        for letter in letters:
            for outbox in self._channels_of(letter):
                self._send(outbox, letter)

    def _send(self, outbox: Outbox, letter: Letter) -> None:
        self._thread.submit(lambda: outbox.submit(letter))

    def _close_outboxes(self) -> dict[str, tuple[Letter, ...]]:
        """The letters that were not sent, by channel."""
        submitted = threading.Event()
        self._thread.submit(submitted.set)
        submitted.wait(_STOP_WITHIN_S)
        return {outbox.name: tuple(outbox.close()) for outbox in self._outboxes}

    def _write(self, unsent: Mapping[str, tuple[Letter, ...]] | None = None) -> None:
        allocations, wall_s = self._allocations, time.time()
        escalation, messages, digest = self._escalation, self._messages, self._digest

        def write() -> None:
            periods = self._before if allocations is None else idle_periods(allocations)
            self._file.write(IdleRecord(periods, escalation, messages, unsent or {}, digest), wall_s)

        self._thread.submit(write)

    def _send_digest_if_due(self, wall_s: float) -> None:
        day, admin = self._settings.idle.digest_day, self._settings.mail.admin
        outboxes = [outbox for outbox in self._outboxes if outbox.name != "email" or admin]
        if day == "off" or not outboxes:
            return
        schedule = DigestSchedule(DAYS.index(day), self._settings.idle.digest_hour)
        week, is_due = digest_due(self._digest, datetime.fromtimestamp(wall_s), schedule)
        if week == self._digest:
            return
        self._digest = week
        self._write()
        if is_due:
            self._thread.submit(lambda: self._send_digest(outboxes, admin, wall_s))

    def _send_digest(self, outboxes: list[Outbox], admin: str, wall_s: float) -> None:
        ledger, events = self._files
        text = weekly_digest(ledger, events, self._hostname, wall_s)
        for outbox in outboxes:
            outbox.submit(Letter(f"{self._hostname}: GPU-hours of the week", text, "", admin))
