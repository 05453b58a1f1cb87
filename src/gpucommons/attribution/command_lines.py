"""The command line of each GPU process, read once, and again after it executed another program. Pure bookkeeping.

The kernel makes the reader of a command line wait for the memory map of that process, which a process stuck in the
driver may hold. So this is a source of its own, on its own thread: the GPU readings never wait for it.
"""

from types import MappingProxyType
from typing import NamedTuple, Protocol

from gpucommons.attribution.process_identity import ProcessIdentities
from gpucommons.model.process_context import CommandLineReading
from gpucommons.model.process_identity import ProcessKey


class ReadsCommands(Protocol):
    def name(self, pid: int) -> str | None:
        """The kernel's name of the process that has this pid now; None where there is none."""

    def command_line(self, key: ProcessKey) -> tuple[str, ...]:
        """Empty where that process has ended, or has none."""


class _Known(NamedTuple):
    name: str
    command_line: tuple[str, ...]


class CommandLines:
    """Used by one thread."""

    def __init__(self, reader: ReadsCommands, identities: ProcessIdentities) -> None:
        self._reader = reader
        self._identities = identities
        self._known: dict[ProcessKey, _Known] = {}
        self._reading = CommandLineReading()

    def read(self) -> CommandLineReading:
        """The same object for as long as nothing has changed."""
        before = self._known
        self._known = {key: self._look(key, before.get(key)) for key in self._identities.table.by_key}
        if self._known != before:
            lines = {key: known.command_line for key, known in self._known.items() if known.command_line}
            self._reading = CommandLineReading(MappingProxyType(lines))
        return self._reading

    def _look(self, key: ProcessKey, last: _Known | None) -> _Known:
        """Executing another program changes the name. In the middle of it, the command line is empty for a moment."""
        name = self._reader.name(key.pid)
        if last is not None and last.command_line and (name is None or name == last.name):
            return last
        line = self._reader.command_line(key)
        return last if last is not None and not line else _Known(name or "", line)
