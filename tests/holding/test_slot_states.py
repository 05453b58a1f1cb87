"""The state of each slot: its only rule, driven with clocks of the test."""

from typing import Any

from attribution.builders import gpu, reading
from gpucommons.model.allocations import SlotState, SlotStatus
from gpucommons.model.gpu import MigMemory
from gpucommons.model.leases import LeasesReading, Reservation
from gpucommons.model.ownership import Reason, Unattributed
from gpucommons.model.snapshot import Readings
from gpucommons.model.workloads import Container
from gpucommons.owners.holding_stage import AllocationStage
from holding.test_allocations import SPLIT, docker, managed, process, readings

FREE, IDLE, BUSY, LOST, UNKNOWN = (
    SlotState.FREE,
    SlotState.HELD_IDLE,
    SlotState.BUSY,
    SlotState.LOST,
    SlotState.UNKNOWN,
)


class Judged:
    """The stage of one agent, with clocks that the test sets."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self._stage = AllocationStage(monotonic=lambda: self.now_s, wall=lambda: 1_700_000_000.0 + self.now_s)

    def at(self, seconds: float, given: Readings) -> dict[str, SlotStatus]:
        self.now_s = 1000.0 + seconds
        found = self._stage(given).slots
        assert found is not None
        return {status.slot.name: status for status in found.slots}


def judged(*containers: Any, **more: Any) -> dict[str, SlotStatus]:
    return Judged().at(0, readings(*containers, **more))


def states(found: dict[str, SlotStatus]) -> dict[str, SlotState]:
    return {name: status.state for name, status in found.items()}


def test_free_idle_busy_and_the_devices_of_a_split_gpu() -> None:
    busy, idle = managed("busy", "bob", "0"), managed("idle", "alice", "1:0")
    found = judged(
        busy, idle, docker("monitor", count=-1), gpus=(gpu(0), SPLIT, gpu(2)), processes=[process(busy, user="bob")]
    )
    assert states(found) == {"0": BUSY, "1.0": IDLE, "1.1": FREE, "2": FREE}, "one that may use all GPUs holds none"
    assert [each.account.user for each in found["0"].holders] == ["bob"]
    assert found["1.0"].idle_s == 0
    assert found["0"].idle_s is None
    assert found["1.0"].profile == SPLIT.mig[0].profile


def test_a_stopped_container_holds_its_slot_idle() -> None:
    found = judged(managed("kept", "alice", "0", running=False))
    assert states(found) == {"0": IDLE}


def test_one_active_holder_makes_a_shared_slot_busy() -> None:
    first, second = managed("first", "alice", "0"), managed("second", "bob", "0")
    found = judged(first, second, processes=[process(first), process(second, user="bob", sm=0, pid=8)])
    assert states(found) == {"0": BUSY}
    assert len(found["0"].holders) == 2


def test_a_holder_whose_use_is_not_known_is_not_called_idle() -> None:
    found = judged(processes=[process(sm=None)])
    assert states(found) == {"0": BUSY}


def test_a_lost_gpu_stays_with_the_time_of_its_loss() -> None:
    lost = gpu(1)._replace(up=False, down_reason="gpu_is_lost", since_wall_s=1_699_999_000.0)
    found = judged(gpus=(gpu(0), lost))
    assert states(found) == {"0": FREE, "1": LOST}
    assert (found["1"].since_wall_s, found["1"].holders) == (1_699_999_000.0, ())
    assert found["1"].why == "The GPU no longer answers (gpu is lost)."


def test_a_slot_is_free_only_if_that_is_known() -> None:
    assert states(judged(gpus=(gpu(0)._replace(processes=None),))) == {"0": UNKNOWN}
    given = readings()
    assert given.attribution is not None
    hidden = given.attribution._replace(unattributed=(Unattributed("GPU-0", 0, Reason.NOT_VISIBLE, 1 << 30),))
    (status,) = Judged().at(0, given._replace(attribution=hidden)).values()
    assert status.state is UNKNOWN
    assert "pid namespace" in status.why
    both = readings(gpus=(gpu(0), gpu(1)))._replace(attribution=hidden)
    assert states(Judged().at(0, both)) == {"0": UNKNOWN, "1": FREE}, "it is on the other GPU"
    (status,) = Judged().at(0, given._replace(attribution=None)).values()
    assert status.state is UNKNOWN


def test_a_slot_is_not_free_while_a_source_of_holders_is_down() -> None:
    agent = Judged()
    assert states(agent.at(0, readings())) == {"0": FREE}
    found = agent.at(1, readings()._replace(docker=None))
    assert states(found) == {"0": UNKNOWN}
    assert "does not answer" in found["0"].why


def test_a_reservation_that_is_in_force() -> None:
    def reserved(from_s: float, until_s: float, **more: Any) -> SlotState:
        reservation = Reservation("r", 1000, "alice", 1, from_s, until_s, ("GPU-0",))
        given = readings(**more)._replace(leases=LeasesReading(reservations=(reservation,)))
        return Judged().at(0, given)["0"].state

    now_s = 1_700_001_000.0
    assert reserved(now_s - 10, now_s + 10) is SlotState.RESERVED
    assert reserved(now_s + 10, now_s + 20) is FREE, "it begins later"
    assert reserved(now_s - 20, now_s - 10) is FREE, "it is over"
    assert reserved(now_s - 10, now_s + 10, processes=[process()]) is BUSY


def test_without_gpus_there_is_no_reading_and_the_past_is_kept() -> None:
    agent = Judged()
    agent.at(0, readings())
    agent.at(10, readings(processes=[process()]))
    assert AllocationStage()(Readings()).slots is None
    agent.now_s = 1020.0
    assert agent._stage(Readings()).slots is None
    assert agent.at(30, readings(processes=[process()]))["0"].since_wall_s == 1_700_001_010.0


def test_since_and_idle_for() -> None:
    agent = Judged()
    working, resting = readings(processes=[process()]), readings(processes=[process(sm=0)])
    assert agent.at(0, working)["0"].since_wall_s is None, "it began before the agent"
    assert agent.at(5, resting)["0"].idle_s == 0
    resting_longer = agent.at(65, resting)["0"]
    assert (resting_longer.state, resting_longer.idle_s, resting_longer.since_wall_s) == (IDLE, 60, None)
    assert agent.at(70, working)["0"].idle_s is None
    assert agent.at(80, resting)["0"].idle_s == 0, "work in between ends the idle time"
    freed = agent.at(90, readings())["0"]
    assert (freed.state, freed.since_wall_s, freed.idle_s) == (FREE, 1_700_001_090.0, None)
    assert agent.at(100, readings())["0"].since_wall_s == 1_700_001_090.0
    taken = agent.at(110, working)["0"]
    assert (taken.state, taken.since_wall_s) == (BUSY, 1_700_001_110.0)
    assert agent.at(120, resting)["0"].since_wall_s == 1_700_001_110.0, "it is still held"
    other = agent.at(130, readings(processes=[process(user="bob")]))["0"]
    assert other.since_wall_s == 1_700_001_130.0, "another owner took it"


def test_the_start_of_a_container_is_known_from_its_runtime() -> None:
    started = managed("early", "alice", "0")._replace(started_wall_s=1_699_000_000.0)
    agent = Judged()
    assert agent.at(0, readings(started))["0"].since_wall_s == 1_699_000_000.0


def test_a_slot_is_held_since_the_first_of_its_containers_started() -> None:
    def started(name: str, user: str, seconds: float) -> Container:
        return managed(name, user, "0")._replace(started_wall_s=1_700_001_000.0 + seconds)

    agent = Judged()
    agent.at(0, readings())
    one, other = started("one", "alice", 4.0), started("other", "bob", 6.0)
    assert agent.at(10, readings(one, other))["0"].since_wall_s == 1_700_001_004.0
    again = [started("one", "alice", 15.0), started("other", "bob", 16.0)]
    assert agent.at(20, readings(*again))["0"].since_wall_s == 1_700_001_004.0, "they were started again: it is held"


def test_a_start_that_is_known_later_is_the_first_one_too() -> None:
    agent = Judged()
    agent.at(0, readings())
    one, other = managed("one", "alice", "0"), managed("other", "bob", "0")
    assert agent.at(10, readings(one, other))["0"].since_wall_s == 1_700_001_010.0
    known = one._replace(started_wall_s=1_700_001_004.0), other._replace(started_wall_s=1_700_001_016.0)
    assert agent.at(20, readings(*known))["0"].since_wall_s == 1_700_001_004.0


def test_memory_is_that_of_the_slot() -> None:
    used = SPLIT.mig[1]._replace(memory=MigMemory(20 << 30, 5 << 30, 15 << 30, None))
    found = judged(gpus=(gpu(0, used=1 << 30), SPLIT._replace(mig=(SPLIT.mig[0], used))))
    whole = reading(gpu(0, used=1 << 30)).gpus[0].readings
    assert (found["0"].memory_total_bytes, found["0"].memory_free_bytes) == (
        whole.memory_total_bytes,
        whole.memory_free_bytes,
    )
    assert (found["1.0"].memory_total_bytes, found["1.0"].memory_free_bytes) == (SPLIT.mig[0].memory_bytes, None)
    assert (found["1.1"].memory_total_bytes, found["1.1"].memory_free_bytes) == (20 << 30, 15 << 30)
