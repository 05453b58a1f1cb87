"""Events from snapshots: each is detected once, also over a restart. What was not read causes no event."""

from collections.abc import Mapping

from attribution.builders import gpu, reading
from demo_node import DemoNode
from gpucommons.faces.documents.events import matching
from gpucommons.ledger.events import DetectorState, detect_events, state_after
from gpucommons.model.accounts import HoldingQuota
from gpucommons.model.allocations import WHOLE_SHARE, Allocation, AllocationReading, Slot
from gpucommons.model.events import Event, format_line, parse_line
from gpucommons.model.gpu import Gpu, XidRecord
from gpucommons.model.leases import LeasesReading
from gpucommons.model.sharing import SharingReading
from gpucommons.model.snapshot import Readings, Snapshot
from ledger.builders import ALICE, BOB, GPU
from ledger.test_usage import allocation

QUOTAS = {"alice": HoldingQuota(1.0)}


class Story:
    """Consecutive snapshots and the resulting event log."""

    def __init__(self) -> None:
        self.state = DetectorState()
        self.log: list[Event] = []
        self.now_s = 1000.0

    def see(
        self,
        *allocations: Allocation,
        gpus: tuple[Gpu, ...] | None = (gpu(0),),
        complete: bool = True,
        sharing: SharingReading | None = None,
        leases: LeasesReading | None = None,
        quotas: Mapping[str, HoldingQuota] = QUOTAS,
    ) -> list[str]:
        self.now_s += 1
        readings = Readings(
            gpus=None if gpus is None else reading(*gpus),
            allocations=AllocationReading((), allocations, complete=complete),
            sharing=sharing,
            leases=leases,
        )
        snapshot = Snapshot(0, self.now_s, self.now_s, "host", readings=readings)
        self.state, events = detect_events(self.state, snapshot, quotas)
        self.log += events
        assert all(event.wall_s == self.now_s and event.source == "gpucommons" for event in events)
        return [f"{event.type} {event.user}".strip() for event in events]

    def restart(self) -> None:
        """Derive the state from the event log."""
        events = [parse_line(format_line(event)) for event in self.log]
        self.state = state_after(event for event in events if isinstance(event, Event))


def test_allocations_are_seen_and_gone_once() -> None:
    story = Story()
    one, two = allocation(ALICE, WHOLE_SHARE), allocation(BOB, 0)
    assert story.see(one) == ["allocation.seen alice"]
    assert story.see(one) == []
    assert story.see(one, two) == ["allocation.seen bob"]
    assert story.see(two) == ["allocation.gone alice"]
    assert story.log[-1].details["slot"] == GPU.name
    assert story.see(complete=False) == [], "a runtime that does not answer has not let go of anything"
    assert story.see(gpus=None) == []
    assert story.see() == ["allocation.gone bob"]


def test_one_container_that_may_use_every_gpu_is_one_event() -> None:
    story = Story()
    sneaky = [allocation(ALICE, 0)._replace(managed=False, slot=Slot(f"GPU-{n}", f"GPU-{n}", str(n))) for n in range(8)]
    assert story.see(*sneaky) == ["allocation.seen alice"]
    assert story.log[-1].details["slot"] == "any"
    assert story.see(sneaky[0]._replace(share=1), *sneaky[1:]) == ["allocation.seen alice"]
    assert story.see() == ["allocation.gone alice"] * 2


def test_a_restart_neither_repeats_nor_misses_an_event() -> None:
    story = Story()
    story.see(allocation(ALICE, WHOLE_SHARE), gpus=(gpu(0), gpu(1, up=False)))
    story.restart()
    assert story.see(allocation(ALICE, WHOLE_SHARE), gpus=(gpu(0), gpu(1, up=False))) == []
    story.restart()
    assert story.see(allocation(BOB, WHOLE_SHARE), gpus=(gpu(0), gpu(1))) == [
        "gpu.back",
        "allocation.seen bob",
        "allocation.gone alice",
    ]


def test_gpus_lost_and_back() -> None:
    story = Story()
    lost = gpu(0)._replace(up=False, down_reason="lost")
    assert story.see(gpus=(gpu(0),)) == []
    assert story.see(gpus=(lost,)) == ["gpu.lost"]
    assert story.log[-1].details["reason"] == "lost"
    assert story.see(gpus=(lost,)) == []
    assert story.see(gpus=None) == [], "a driver that does not answer brings nothing back"
    assert story.see(gpus=(gpu(0),)) == ["gpu.back"]


def test_the_same_xid_twice_is_two_events() -> None:
    story = Story()
    assert story.see(gpus=(gpu(0)._replace(xid=XidRecord(True, {63: 1})),)) == ["gpu.xid"]
    assert story.see(gpus=(gpu(0)._replace(xid=XidRecord(True, {63: 1})),)) == []
    assert story.see(gpus=(gpu(0)._replace(xid=XidRecord(True, {63: 3, 79: 1})),)) == ["gpu.xid", "gpu.xid"]
    assert [(event.details["xid"], event.details["count"]) for event in story.log] == [
        ("63", "1"),
        ("63", "2"),
        ("79", "1"),
    ]


def test_quotas_exceeded_and_kept() -> None:
    story = Story()
    first, second = allocation(ALICE, WHOLE_SHARE), allocation(ALICE, WHOLE_SHARE)._replace(workload_id="second")
    story.see(first)
    assert "quota.exceeded alice" in story.see(first, second)
    assert story.log[-1].details == {"used": "2", "limit": "1"}
    story.restart()
    assert story.see(first, second) == []
    assert story.see(first, second, complete=False) == []
    assert "quota.kept alice" in story.see(first)
    assert story.see(first, second, quotas={}) == ["allocation.seen alice"], "no quota, nothing to exceed"


def test_a_revoked_turn() -> None:
    sharing = DemoNode().sharing(0.0)
    client = sharing.clients[0]
    revoked = sharing._replace(clients=(client._replace(revoked=True), *sharing.clients[1:]))
    story = Story()
    assert story.see(sharing=sharing) == []
    assert story.see(sharing=revoked) == ["turn.revoked"]
    assert story.see(sharing=revoked) == []
    assert story.log[-1].details["client"] == client.client_id
    story.see(sharing=sharing)
    assert story.see(sharing=revoked) == ["turn.revoked"], "again is another one"


def test_a_trespasser_and_an_unused_reservation_are_reported_once() -> None:
    leases = DemoNode().leases(0.0)
    story = Story()
    assert story.see(leases=leases) == ["lease.trespasser alice", "reservation.released emeka"]
    assert story.log[0].details["by"] == "farah"
    assert story.see(leases=leases._replace(trespassers=())) == []
    assert story.see(leases=leases) == [], "the same process on and off the GPU"
    story.restart()
    assert story.see(leases=leases) == []
    other = leases.trespassers[0]._replace(pid=4)
    assert story.see(leases=leases._replace(trespassers=(other,))) == ["lease.trespasser alice"]


def test_a_pause_of_a_trespasser_has_a_beginning_and_an_end_for_its_user() -> None:
    leases = DemoNode().leases(0.0)._replace(no_shows=())
    paused = leases._replace(trespassers=tuple(each._replace(paused=True) for each in leases.trespassers))
    story = Story()
    assert story.see(leases=leases) == ["lease.trespasser alice"]
    assert story.see(leases=paused) == ["lease.trespasser_paused farah"]
    assert story.see(leases=paused) == []
    assert story.see() == [], "unknown is not the end"
    # The agent ended, and with it the pause.
    story.restart()
    assert story.see(leases=leases._replace(trespassers=())) == ["lease.trespasser_resumed farah"]
    assert story.log[-1].details == story.log[-2].details
    assert story.see(leases=leases) == []


def test_filters() -> None:
    events = [Event(1, "gpu.lost"), Event(2, "gpu.xid"), Event(3, "quota.exceeded", "alice"), Event(4, "gpux.y", "bob")]
    assert [e.wall_s for e in matching(events, 2, None, None)] == [2, 3, 4]
    assert [e.wall_s for e in matching(events, None, "gpu", None)] == [1, 2]
    assert [e.wall_s for e in matching(events, None, "gpu.xid", None)] == [2]
    assert [e.wall_s for e in matching(events, None, None, "alice")] == [3]
