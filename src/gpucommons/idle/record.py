"""What outlives the agent: the idle periods, the steps taken in them, the messages, the letters that wait, the digest.

One small file, replaced as a whole. It is written before a message is sent, so that none is sent twice.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gpucommons.base.state_file import StateFile
from gpucommons.idle.channels import Letter
from gpucommons.idle.escalation import EscalationState, StepsTaken
from gpucommons.model.idle import IdleKey, IdleMessage, IdlePeriod, IdlePeriods, IdleStep
from gpucommons.model.process_identity import ProcessKey

_VERSION: Final = 1
# After a longer time without an agent, the holders may have worked in between.
_LONGEST_ABSENCE_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class IdleRecord:
    """`unsent` are the letters of each channel that waited for a try. `digest` is the week of the last digest."""

    periods: IdlePeriods = field(default_factory=dict)
    escalation: EscalationState = field(default_factory=dict)
    messages: tuple[IdleMessage, ...] = ()
    unsent: Mapping[str, tuple[Letter, ...]] = field(default_factory=dict)
    digest: str = ""


class IdleRecordFile:
    """`boot_id` changes when the machine restarts: then processes have other identities, and no period goes on."""

    def __init__(self, path: Path, boot_id: str) -> None:
        self._file = StateFile(path, "idle holders", "after a restart of the agent a message may be sent again")
        self._boot_id = boot_id

    @property
    def writing(self) -> bool:
        """Whether it can be written."""
        return self._file.writing

    def read(self, now_wall_s: float) -> IdleRecord:
        return self._file.read(lambda value: self._parse(value, now_wall_s), IdleRecord())

    def write(self, record: IdleRecord, now_wall_s: float) -> None:
        """A failure is logged once; the escalation goes on without a record."""
        value = {
            "version": _VERSION,
            "boot_id": self._boot_id,
            "time_unix_s": now_wall_s,
            "periods": [[*key, period.length_s, sorted(period.processes)] for key, period in record.periods.items()],
            "escalation": record.escalation,
            "messages": record.messages,
            "unsent": record.unsent,
            "digest": record.digest,
        }
        self._file.write(value)

    def _parse(self, value: dict[str, Any], now_wall_s: float) -> IdleRecord:
        messages = tuple(_message(*fields) for fields in value["messages"])
        unsent = {name: tuple(Letter(*letter) for letter in letters) for name, letters in value["unsent"].items()}
        digest = str(value["digest"])
        absence_s = now_wall_s - float(value["time_unix_s"])
        if value["boot_id"] != self._boot_id or not -_LONGEST_ABSENCE_S <= absence_s <= _LONGEST_ABSENCE_S:
            return IdleRecord(messages=messages, unsent=unsent, digest=digest)
        periods: dict[IdleKey, IdlePeriod] = {
            (str(workload), str(slot)): IdlePeriod(float(length_s), (), frozenset(ProcessKey(*key) for key in keys))
            for workload, slot, length_s, keys in value["periods"]
        }
        # "ladder" is its name in the files of release 0.1.0.
        steps = value.get("escalation") or value.get("ladder") or {}
        escalation = {str(key): StepsTaken(*fields) for key, fields in steps.items()}
        return IdleRecord(periods, escalation, messages, unsent, digest)


def _message(
    id: str, user: str, wall_s: float, step: str, text: str, holder: str, notified_s: float, over: bool
) -> IdleMessage:
    return IdleMessage(str(id), str(user), float(wall_s), IdleStep(step), str(text), holder, float(notified_s), over)
