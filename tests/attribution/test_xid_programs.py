"""Which program an XID hit: by the kernel log, else the only one on the GPU; and what each viewer is shown of it."""

from dataclasses import replace

import pytest

from attribution.builders import gpu, reading
from gpucommons.faces.dialects.gpucommons.gpus import XID_PROGRAM, collect_gpus
from gpucommons.ledger.events import DetectorState, detect_events
from gpucommons.model.events import PROGRAM_XID
from gpucommons.model.gpu import KernelLogReading, XidLine, XidRecord
from gpucommons.model.ownership import Attribution, Owner, OwnerKind, Place, ProcessShare, Workload
from gpucommons.model.problems import ProblemKind
from gpucommons.model.process_identity import PidScope, PidView
from gpucommons.model.snapshot import Readings, Snapshot
from gpucommons.model.viewer import Viewer
from gpucommons.owners.xid_programs import XidProgramStage
from gpucommons.rules.privacy import redact
from gpucommons.rules.problems import own_problems

NOW = 1_800_000_000.0
ALICE, BOB = (1000, "alice"), (1001, "bob")


def share(pid: int, user: tuple[int, str], uuid: str) -> ProcessShare:
    uid, name = user
    owner = Owner(OwnerKind.USER, str(uid), name)
    return ProcessShare(Place(uuid, 0), pid, None, None, None, None, owner, None, Workload("python", uid, name))


class Node:
    """One GPU at 0000:c1:00, and a stage that sees a snapshot every second."""

    def __init__(self) -> None:
        self.gpu = gpu(0)
        self.gpu = self.gpu._replace(identity=replace(self.gpu.identity, pci_bus_id="00000000:C1:00.0"))
        self.now_s = NOW
        self.stage = XidProgramStage(lambda: self.now_s)
        self.running: list[ProcessShare] = []
        self.counts: dict[int, int] = {}
        self.lines: list[XidLine] = []
        self.newest: Snapshot | None = None

    @property
    def uuid(self) -> str:
        return self.gpu.identity.uuid

    def run(self, pid: int, user: tuple[int, str]) -> None:
        self.running.append(share(pid, user, self.uuid))

    def xid(self, code: int, pid: int | None = None, program: str = "", logged: bool = True) -> None:
        self.counts[code] = self.counts.get(code, 0) + 1
        if logged:
            self.lines.append(XidLine(len(self.lines) + 1, self.now_s, "0000:c1:00", code, pid, program))

    def after(self, seconds: float) -> Snapshot:
        for _ in range(int(seconds)):
            self.now_s += 1
            recent = {(int(NOW), code): count for code, count in self.counts.items()}
            card = self.gpu._replace(xid=XidRecord(True, dict(self.counts), recent=recent))
            readings = Readings(
                gpus=reading(card),
                attribution=Attribution(tuple(self.running), (), (), (), PidView(PidScope.HOST, "")),
                kernel_log=KernelLogReading(tuple(self.lines)),
            )
            self.newest = Snapshot(1, 0.0, self.now_s, "node", readings=self.stage(readings))
        assert self.newest is not None
        return self.newest


def sentence(found: Snapshot) -> str:
    (problem,) = (problem for problem in own_problems(found) if problem.kind is ProblemKind.XID)
    return problem.sentence


@pytest.fixture
def node() -> Node:
    return Node()


def test_the_kernel_log_names_the_process_also_when_it_is_gone(node: Node) -> None:
    node.run(1234, ALICE)
    node.run(77, BOB)
    node.after(1)
    node.running.clear()
    node.xid(31, 1234, "python")
    found = node.after(2)
    assert sentence(found).endswith("page fault of the program, not the hardware. It hit python (pid 1234) of alice.")
    (row,) = [family for family in collect_gpus(found) if family.metric is XID_PROGRAM]
    assert dict(row.points) == {("0", node.uuid, "31", "python", "1234", "alice"): NOW + 1}
    events = detect_events(DetectorState(), found, {})[1]
    (event,) = [event for event in events if event.type == PROGRAM_XID]
    assert (event.user, event.details["pid"], event.details["xid"]) == ("alice", "1234", "31")
    after, _ = detect_events(DetectorState(), found, {})
    _, none = detect_events(after, found, {})
    assert PROGRAM_XID not in [event.type for event in none], "once"


def test_other_users_see_no_name(node: Node) -> None:
    node.run(1234, ALICE)
    node.after(1)
    node.xid(31, 1234, "python")
    found = node.after(2)
    own, other = Viewer(False, 1000, "alice"), Viewer(False, 1001, "bob")
    local = Viewer(False, 1001, "bob", sees_names=True)
    assert "of alice" in sentence(redact(found, own))
    assert sentence(redact(found, other)).endswith(
        "page fault of the program, not the hardware. It hit a program of another user."
    )
    assert "python (pid 1234) of alice" in sentence(redact(found, local)), "what ps shows"


def test_without_the_log_the_only_program_is_named_and_of_several_none(node: Node) -> None:
    node.run(1234, ALICE)
    node.after(1)
    node.xid(13, logged=False)
    assert "It hit" not in sentence(node.after(1)), "the log may still name it"
    assert sentence(node.after(5)).endswith("The only program on the GPU was python (pid 1234) of alice.")
    node.run(77, BOB)
    node.xid(45, logged=False)
    last = [problem.sentence for problem in own_problems(node.after(6)) if "XID 45" in problem.sentence]
    assert [each for each in last if "pid" in each] == []
    assert len(last) == 1


def test_a_line_without_a_pid_counts_as_none(node: Node) -> None:
    node.run(1234, ALICE)
    node.after(1)
    node.xid(13, None)
    assert sentence(node.after(6)).endswith("The only program on the GPU was python (pid 1234) of alice.")


def test_a_process_that_was_never_seen_has_the_name_of_the_log(node: Node) -> None:
    node.xid(31, 99, "short-lived")
    assert sentence(node.after(1)).endswith("It hit short-lived (pid 99).")


def test_many_programs_are_counted(node: Node) -> None:
    for pid in range(1, 6):
        node.run(pid, ALICE)
    node.after(1)
    for pid in range(1, 6):
        node.xid(45, pid, "python")
    hit = sentence(node.after(1)).partition("It hit ")[2]
    assert hit == "python (pid 1) of alice, python (pid 2) of alice, python (pid 3) of alice and 2 more."
