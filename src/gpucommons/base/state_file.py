"""A small file of JSON that outlives the agent: read once at the start, replaced as a whole.

A damaged file is logged and counts as empty: it is overwritten later. A file that cannot be written is logged once, and
the agent goes on without it.
"""

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from gpucommons.base.files import STATE_FILE_MODE, open_without_waiting, replace_state_file

_MAX_BYTES: Final = 8 << 20
# What a parser raises for a value of another shape.
_DAMAGE: Final = (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError)

T = TypeVar("T")
log = logging.getLogger(__name__)


class StateFile:
    """`owner` begins the lines of the log. `loss` is what a restart of the agent would cost without the file."""

    def __init__(self, path: Path, owner: str, loss: str, mode: int = STATE_FILE_MODE) -> None:
        self._path = path
        self._owner = owner
        self._loss = loss
        self._mode = mode
        self.writing = True

    def read(self, parse: Callable[[dict[str, Any]], T], empty: T) -> T:
        """What `parse` makes of the file; `empty` where there is none, or a damaged one."""
        try:
            with open(self._path, "rb", opener=open_without_waiting) as file:
                return parse(json.loads(file.read(_MAX_BYTES)))
        except FileNotFoundError:
            return empty
        except _DAMAGE as error:
            log.warning("%s: the record %s cannot be read: %s; it starts empty", self._owner, self._path, error)
            return empty

    def write(self, value: Mapping[str, object], durably: bool = False) -> None:
        """`durably` also survives a power failure. `writing` says afterwards whether it succeeded."""
        try:
            replace_state_file(self._path, json.dumps(value).encode(), self._mode, durably)
        except OSError as error:
            if self.writing:
                reason = error.strerror or str(error)
                log.error("%s: the record %s cannot be written: %s; %s", self._owner, self._path, reason, self._loss)
            self.writing = False
        else:
            self.writing = True
