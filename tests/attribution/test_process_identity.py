"""A GPU process is read once, kept while it is alive, and never confused with an earlier process of its pid."""

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from attribution.cgroup_vectors import C
from attribution.procfs_tree import add_process, status_text
from gpucommons.model.ownership import Reason
from gpucommons.model.process_identity import PidScope, PidView, ProcessDetails, ProcessIdentity, ProcessKey
from gpucommons.owners.process_identity import IdentityTable, ProcessIdentities, SeenProcess
from gpucommons.sources.host.process_details import ProcessDetailsReader

HOST = PidView(PidScope.HOST, "")
CONFINED = PidView(PidScope.NAMESPACE, "")
NOW = 1_000_000


def seen(pid: int, start_ticks: int | None = 100) -> SeenProcess:
    return SeenProcess(pid, None if start_ticks is None else ProcessKey(pid, start_ticks))


@dataclass
class Machine:
    """The processes of a machine by pid, and which of them were read."""

    starts: dict[int, int] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)
    gpu_holders: set[int] = field(default_factory=set)
    reads: list[int] = field(default_factory=list)
    kept: set[ProcessKey] = field(default_factory=set)

    def read(self, pid: int, look_for_gpu: bool = False) -> ProcessDetails | Reason:
        self.reads.append(pid)
        if pid in self.refused:
            return Reason.PROCESS_UNREADABLE
        if pid not in self.starts:
            return Reason.PROCESS_GONE
        key = ProcessKey(pid, self.starts[pid])
        holds = pid in self.gpu_holders if look_for_gpu else None
        return ProcessDetails(key, "job", status_text("job", 1000, (pid, 1)), f"0::/docker-{C}.scope", holds)

    def is_alive(self, key: ProcessKey) -> bool:
        return self.starts.get(key.pid) == key.start_ticks

    def keep(self, keys: Collection[ProcessKey]) -> None:
        self.kept = set(keys)


def key_of(found: ProcessIdentity | Reason) -> ProcessKey:
    assert isinstance(found, ProcessIdentity)
    return found.key


def test_the_identity_of_a_process(tmp_path: Path) -> None:
    add_process(tmp_path, 7, name="train", uid=1001, cgroup=f"0::/docker-{C}.scope\n", inner_pids=(1,))
    found = ProcessIdentities(ProcessDetailsReader(tmp_path), HOST).see([seen(7)], NOW).find(*seen(7))
    assert isinstance(found, ProcessIdentity)
    assert (found.key, found.name, found.uid) == (ProcessKey(7, 100), "train", 1001)
    assert found.namespaced_pids == (7, 1)
    assert found.cgroup.container_id == C


def test_a_known_process_costs_no_read() -> None:
    machine = Machine({7: 100, 8: 100})
    identities = ProcessIdentities(machine, HOST)
    first = identities.see([seen(7), seen(8)], NOW)
    second = identities.see([seen(7), seen(8)], NOW + 100)
    assert machine.reads == [7, 8]
    assert second is first


def test_one_process_on_two_gpus_is_read_once() -> None:
    machine = Machine({7: 100})
    ProcessIdentities(machine, HOST).see([seen(7), seen(7)], NOW)
    assert machine.reads == [7]


def test_a_reused_pid_is_another_process() -> None:
    machine = Machine({7: 100})
    identities = ProcessIdentities(machine, HOST)
    identities.see([seen(7, 100)], NOW)
    machine.starts[7] = 200
    assert key_of(identities.see([seen(7, 200)], NOW).find(*seen(7, 200))) == ProcessKey(7, 200)


def test_an_outdated_key_is_corrected() -> None:
    """A source that lists a pid in every reading may not notice that another process has it now."""
    machine = Machine({7: 100})
    identities = ProcessIdentities(machine, HOST)
    identities.see([seen(7, 100)], NOW)
    machine.starts[7] = 200
    assert key_of(identities.see([seen(7, 100)], NOW).find(*seen(7, 100))) == ProcessKey(7, 200)


def test_a_process_that_started_after_the_reading_is_not_the_listed_one() -> None:
    machine = Machine({7: 200, 8: 199})
    identities = ProcessIdentities(machine, HOST)
    table = identities.see([seen(7, 100), seen(8, 199)], begun_ticks=200)
    assert table.find(*seen(7, 100)) is Reason.PROCESS_GONE
    assert key_of(table.find(*seen(8, 199))) == ProcessKey(8, 199)
    assert key_of(identities.see([seen(7, 200)], 300).find(*seen(7, 200))) == ProcessKey(7, 200)


def test_an_ended_process_is_kept_for_one_pass() -> None:
    machine = Machine({7: 100})
    identities = ProcessIdentities(machine, HOST)
    identities.see([seen(7)], NOW)
    assert key_of(identities.see([], NOW).find(*seen(7))) == ProcessKey(7, 100)
    assert machine.kept == set()
    assert identities.see([], NOW).find(*seen(7)) is Reason.PROCESS_GONE
    assert not identities.table.by_key


def test_a_process_without_a_start_time_is_found_by_its_pid() -> None:
    table = ProcessIdentities(Machine({7: 100}), HOST).see([seen(7, None), seen(8, None)], NOW)
    assert key_of(table.find(*seen(7, None))) == ProcessKey(7, 100)
    assert table.find(*seen(8, None)) is Reason.PROCESS_GONE


def test_a_failed_read_is_retried() -> None:
    machine = Machine({}, refused={7})
    identities = ProcessIdentities(machine, HOST)
    assert identities.see([seen(7)], NOW).find(*seen(7)) is Reason.PROCESS_UNREADABLE
    machine.refused.clear()
    machine.starts[7] = 100
    assert key_of(identities.see([seen(7)], NOW).find(*seen(7))) == ProcessKey(7, 100)


def test_in_a_pid_namespace_a_pid_counts_only_if_it_holds_a_gpu() -> None:
    """Pid 7 of the host may be another process here; only one with an open device file can be the listed one."""
    machine = Machine({7: 100, 8: 100}, gpu_holders={8})
    table = ProcessIdentities(machine, CONFINED).see([seen(7), seen(8), seen(9, None)], NOW)
    assert table.find(*seen(7)) is Reason.PID_NAMESPACE
    assert key_of(table.find(*seen(8))) == ProcessKey(8, 100)
    assert table.find(*seen(9, None)) is Reason.PID_NAMESPACE


def test_with_hidepid_a_missing_process_is_unreadable() -> None:
    table = ProcessIdentities(Machine(), PidView(PidScope.OWN_USER, "")).see([seen(7)], NOW)
    assert table.find(*seen(7)) is Reason.PROCESS_UNREADABLE


def test_before_the_first_pass() -> None:
    assert IdentityTable().find(*seen(7)) is Reason.PROCESS_GONE


PIDS = st.integers(1, 6)


@given(st.lists(st.tuples(st.sampled_from(["start", "end", "look"]), PIDS, st.booleans()), max_size=60))
def test_a_process_is_never_confused_with_another(steps: list[tuple[str, int, bool]]) -> None:
    """For any sequence of processes and keys, the process with the pid is found and read only once."""
    machine, listed_before = Machine(), dict[int, SeenProcess]()
    identities = ProcessIdentities(machine, HOST)
    stayed: set[ProcessKey] = set()
    for clock, (action, pid, stale_keys) in enumerate(steps, start=1):
        if action == "start":
            machine.starts[pid] = clock
        elif action == "end":
            machine.starts.pop(pid, None)
        else:
            listed = {p: seen(p, start) for p, start in machine.starts.items()}
            if stale_keys:
                listed |= {p: s for p, s in listed_before.items() if p in listed}
            listed_before = listed
            machine.reads.clear()
            table = identities.see(listed.values(), begun_ticks=clock)
            read = {ProcessKey(p, machine.starts[p]) for p in machine.reads}
            assert len(machine.reads) == len(read)
            truth = [ProcessKey(p, machine.starts[p]) for p in listed]
            assert [key_of(table.find(*process)) for process in listed.values()] == truth
            assert not read & stayed, "a process that stayed was read twice"
            stayed = set(truth)
