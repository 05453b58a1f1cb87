"""Which step of the escalation is due for which idle holder. Pure.

Steps are measured in idle time, which neither a clock that is set nor a restart changes. Each step is taken at most
once in an idle period, and the action only after a message was delivered.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from gpucommons.config.accounts import IdleSettings
from gpucommons.model.idle import IdleStep


class IdleHolder(NamedTuple):
    """`idle_s` is None while it uses one of its slots. `can_act`: the configured action applies to it.

    `is_exempt`: its label or a rule says to leave it alone.
    """

    key: str
    idle_s: float | None
    can_act: bool = False
    is_exempt: bool = False


class StepsTaken(NamedTuple):
    """The steps taken in an idle period, by its idle time then. `reached_s` is when a message was delivered."""

    notified_s: float
    reached_s: float | None = None
    reminded: bool = False
    acted: bool = False


EscalationState = Mapping[str, StepsTaken]
"""By key of the holder."""


def find_due_steps(
    holders: Iterable[IdleHolder],
    escalation: EscalationState,
    settings: IdleSettings,
    may_be_missing: AbstractSet[str] = frozenset(),
) -> tuple[dict[str, StepsTaken], list[tuple[IdleHolder, IdleStep]]]:
    """The new state of the escalation, and the steps to take now: at most one for each holder.

    `holders` are all that hold a slot, with None for those that use it. A period has ended if its holder is missing,
    uses its slots, or has a shorter idle time than at its first message. Those in `may_be_missing` stay where they are
    while they are missing: the source that reports them does not answer.
    """
    after = {key: done for key, done in escalation.items() if key in may_be_missing}
    due: list[tuple[IdleHolder, IdleStep]] = []
    for holder in holders:
        after.pop(holder.key, None)
        if holder.idle_s is None:
            continue
        done = escalation.get(holder.key)
        if done is not None and holder.idle_s < done.notified_s:
            done = None
        step = None if holder.is_exempt else _due(holder, holder.idle_s, done, settings)
        if step is not None:
            done = _take_step(step, done, holder.idle_s)
            due.append((holder, step))
        if done is not None:
            after[holder.key] = done
    return after, due


def _due(holder: IdleHolder, idle_s: float, done: StepsTaken | None, settings: IdleSettings) -> IdleStep | None:
    if not settings.after_s or idle_s < settings.after_s:
        return None
    if done is None:
        return IdleStep.NOTIFY
    if done.acted:
        return None
    # A reminder that is due comes first, however late it is.
    if settings.remind_after_s and not done.reminded and idle_s - done.notified_s >= settings.remind_after_s:
        return IdleStep.REMIND
    may_act = holder.can_act and done.reached_s is not None
    return IdleStep.ACT if may_act and idle_s - (done.reached_s or 0.0) >= settings.act_after_s else None


def _take_step(step: IdleStep, done: StepsTaken | None, idle_s: float) -> StepsTaken:
    if done is None:
        return StepsTaken(idle_s)
    return done._replace(acted=True) if step is IdleStep.ACT else done._replace(reminded=True)


def mark_reached(escalation: EscalationState, key: str, notified_s: float, idle_s: float) -> EscalationState:
    """A message of the period that was notified at `notified_s` was delivered. A later one changes nothing."""
    done = escalation.get(key)
    if done is None or done.notified_s != notified_s or done.reached_s is not None:
        return escalation
    return {**escalation, key: done._replace(reached_s=max(idle_s, notified_s))}
