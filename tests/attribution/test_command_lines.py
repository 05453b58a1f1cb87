"""The command line of a GPU process is read once, and again when the process has another name."""

from dataclasses import dataclass, field
from pathlib import Path

from attribution.builders import HOST, identity, table
from gpucommons.model.process_identity import ProcessKey
from gpucommons.owners.process_identity import CommandLines, IdentityTable, ProcessIdentities
from gpucommons.sources.host.process_details import ProcessDetailsReader


@dataclass
class Machine:
    """The name, start time and command line of each pid, and which command lines were read."""

    processes: dict[int, tuple[str, int, tuple[str, ...]]] = field(default_factory=dict)
    reads: list[int] = field(default_factory=list)

    def name(self, pid: int) -> str | None:
        return self.processes[pid][0] if pid in self.processes else None

    def command_line(self, key: ProcessKey) -> tuple[str, ...]:
        self.reads.append(key.pid)
        _, start, line = self.processes.get(key.pid, ("", -1, ()))
        return line if start == key.start_ticks else ()


def listed(*pids: int) -> IdentityTable:
    return table(*(identity(pid, start_ticks=100) for pid in pids))


def key(pid: int) -> ProcessKey:
    return ProcessKey(pid, 100)


def watched(machine: Machine, *pids: int) -> tuple[CommandLines, ProcessIdentities]:
    identities = ProcessIdentities(ProcessDetailsReader(Path("/nowhere")), HOST)
    identities.table = listed(*pids)
    return CommandLines(machine, identities), identities


def test_each_process_is_read_once() -> None:
    machine = Machine({7: ("python", 100, ("python", "train.py")), 8: ("ollama", 100, ("ollama", "serve"))})
    lines, _ = watched(machine, 7, 8)
    first = lines.read()
    assert first.by_key == {key(7): ("python", "train.py"), key(8): ("ollama", "serve")}
    assert lines.read() is first
    assert machine.reads == [7, 8]


def test_a_process_that_executes_another_program_is_read_again() -> None:
    machine = Machine({7: ("bash", 100, ("bash", "run.sh"))})
    lines, _ = watched(machine, 7)
    lines.read()
    machine.processes[7] = ("python", 100, ("python", "train.py"))
    assert lines.read().by_key == {key(7): ("python", "train.py")}
    lines.read()
    assert machine.reads == [7, 7]


def test_a_command_line_that_is_empty_for_a_moment_is_read_again() -> None:
    machine = Machine({7: ("python", 100, ())})
    lines, _ = watched(machine, 7)
    assert lines.read().by_key == {}
    machine.processes[7] = ("python", 100, ("python", "train.py"))
    assert lines.read().by_key == {key(7): ("python", "train.py")}


def test_a_process_keeps_its_command_line_after_its_pid_was_reused() -> None:
    """Its identity stays in the table for one more pass."""
    machine = Machine({7: ("python", 100, ("python", "train.py"))})
    lines, identities = watched(machine, 7)
    lines.read()
    machine.processes[7] = ("other", 200, ("other",))
    assert lines.read().by_key == {key(7): ("python", "train.py")}
    del machine.processes[7]
    assert lines.read().by_key == {key(7): ("python", "train.py")}
    identities.table = listed()
    assert lines.read().by_key == {}
