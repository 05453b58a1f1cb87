"""Which turns begin and end after an event, one decision at a time: overload, revocations, lending, room."""

import pytest

from gpucommons.config.scheduler import SchedulerSettings
from gpucommons.model.gpu import DeviceActivity
from gpucommons.scheduler.corun.coruns import SETTLE_S
from gpucommons.scheduler.policy.state import GIB, NEVER, PROGRAM, ClientStanding, Fence, Measure, Mode, SwitchTime
from gpucommons.scheduler.protocol.wire import MessageType
from scheduler.simulation import Script, Simulation

T = MessageType


class Gpu(Simulation):
    """10 GiB, of which clients may use 9. Clients stop when they are asked to, and do not request again."""

    def __init__(self, mode: Mode = Mode.CONCURRENT, **changes: object) -> None:
        super().__init__(SchedulerSettings(mode=mode, default_gpu_memory_gb=10.0, **changes))  # type: ignore[arg-type]
        self.asked: list[Measure] = []

    def measure(self, action: Measure) -> None:
        self.asked.append(action)

    def start(self, gib: float = 1, owner: str = "", **changes: object) -> Script:
        return self.add(memory=round(gib * GIB), owner=owner, obeys=False, **changes)  # type: ignore[arg-type]

    def program(self, owner: str = "", core: int = 100) -> Script:
        script = self.add(version=PROGRAM, owner=owner, core=core, obeys=False, request=False)
        self.perform(self.policy.join(script.client, self.now))
        return script

    def release(self, script: Script) -> None:
        script.holds = False
        self.perform(self.policy.release(script.client, self.now))

    def request(self, script: Script) -> None:
        self.perform(self.policy.request(script.client, self.now))

    def report(self, script: Script, gib: float) -> None:
        self.perform(self.policy.update_memory(script.client, round(gib * GIB), self.now))


def runs(*scripts: Script) -> list[bool]:
    return [script.client.standing is ClientStanding.RUNNING for script in scripts]


def dropped(*scripts: Script) -> list[bool]:
    return [script.client.turn.drop_s is not None for script in scripts]


# Overload


def test_overload_ends_the_turns_of_all_clients_but_the_oldest_that_goes_on() -> None:
    gpu = Gpu()
    program = gpu.program()
    first, second, third = (gpu.start() for _ in range(3))
    gpu.report(second, 9)
    assert dropped(program, first, second, third) == [False, False, True, True]
    gpu = Gpu()
    first, second, third = (gpu.start(2) for _ in range(3))
    gpu.start(4)
    gpu.run(25.0)
    assert dropped(first, second, third) == [True, False, False]
    gpu.report(third, 7)
    assert dropped(second, third) == [False, True]


def test_a_client_next_to_programs_may_grow() -> None:
    gpu = Gpu()
    programs = [gpu.program() for _ in range(2)]
    client = gpu.start()
    gpu.report(client, 50)
    assert not gpu.gpu.memory.overloaded
    assert dropped(*programs, client) == [False, False, False]


# Revocations


def test_a_client_without_a_process_is_fenced_by_itself() -> None:
    gpu = Gpu(Mode.SERIAL, switch_time_mode=SwitchTime.FIXED, switch_time_fixed_s=1.0, revoke_after_s=5.0)
    deaf, other = gpu.start(), gpu.start()
    gpu.run(6.0)
    assert deaf.client.turn.revoked
    gpu.request(deaf)
    gpu.release(other)
    gpu.request(other)
    gpu.run(5.9)
    assert deaf.client.id in gpu.policy.clients
    gpu.run(0.2)
    assert deaf.client.id not in gpu.policy.clients


def test_the_patience_for_a_program_does_not_fall_with_the_revocations_of_its_owner() -> None:
    gpu = Gpu(Mode.SERIAL, fence=Fence.NONE)
    deaf, _ = gpu.start(owner="ann"), gpu.start(owner="bob")
    gpu.run(41.0)
    assert deaf.client.turn.revoked
    program = gpu.program("ann", core=25)
    while not dropped(program)[0]:
        gpu.run(0.1)
    gpu.run(29.0)
    assert runs(program) == [True]
    gpu.run(1.2)
    assert program.client.turn.revoked


def test_a_client_that_is_deaf_again_has_five_seconds_and_gets_no_second_request() -> None:
    gpu = Gpu(Mode.SERIAL, fence=Fence.NONE)
    deaf, other = gpu.start(owner="ann"), gpu.start(owner="bob")
    gpu.run(41.0)
    gpu.request(deaf)
    gpu.release(other)
    gpu.request(other)
    assert runs(deaf) == [True]
    drops = deaf.received.count(T.DROP_LOCK)
    while not dropped(deaf)[0]:
        gpu.run(0.1)
    drop_s = deaf.client.turn.drop_s
    assert drop_s is not None
    assert gpu.policy.next_deadline_s() == pytest.approx(drop_s + 5.0)
    gpu.run(5.0)
    assert deaf.client.turn.revoked
    assert deaf.received.count(T.DROP_LOCK) == drops + 2, "the second one says that the turn was revoked"


def test_clients_without_a_process_are_fenced_each_by_itself() -> None:
    gpu = Gpu(Mode.SERIAL, switch_time_mode=SwitchTime.FIXED, switch_time_fixed_s=1.0, revoke_after_s=5.0)
    deaf, deaf_too, _ = gpu.start(), gpu.start(), gpu.start()
    gpu.run(14.0)
    assert [each.client.turn.revoked for each in (deaf, deaf_too)] == [True, True]
    assert gpu.policy.clients.keys() >= {deaf.client.id, deaf_too.client.id}, "each was revoked once"


def test_a_client_that_does_not_stop_is_asked_again_after_five_seconds() -> None:
    gpu = Gpu()
    holder, _ = gpu.start(8), gpu.start(8)
    while not dropped(holder)[0]:
        gpu.run(0.1)
    gpu.run(1.0)
    gpu.start(1)
    gpu.run(3.0)
    assert holder.received.count(T.DROP_LOCK) == 1
    gpu.run(1.2)
    assert holder.received.count(T.DROP_LOCK) == 2


def test_of_several_that_do_not_stop_each_is_asked_again_five_seconds_after_it_was_asked_first() -> None:
    gpu = Gpu()
    first, second, third = (gpu.start(2) for _ in range(3))
    gpu.start(4)
    while not dropped(first)[0]:
        assert gpu.now < 2000.0
        gpu.run(0.1)
    gpu.run(2.0)
    gpu.report(third, 7)
    assert dropped(first, second, third) == [True, False, True]
    gpu.run(3.2)
    assert [script.received.count(T.DROP_LOCK) for script in (first, third)] == [2, 1]


# Quotas


def test_the_client_that_is_nearest_to_its_refill_borrows() -> None:
    gpu = Gpu(Mode.SERIAL, work_conserving=True)
    last, first = gpu.add(core=10), gpu.add(core=50)
    gpu.run(60.0)
    billed = [gpu.billed_s(script) for script in (last, first)]
    assert sum(billed) == pytest.approx(60.0, abs=0.5), "the GPU is never idle"
    assert billed[1] > 1.5 * billed[0]


@pytest.mark.parametrize("percents", [(10, 50), (50, 10)])
def test_of_several_that_are_throttled_the_one_that_would_run_next_anyway_borrows(percents: tuple[int, int]) -> None:
    def throttled(*, work_conserving: bool) -> tuple[Gpu, list[Script]]:
        """A third client has left the GPU to two that have spent their quotas."""
        gpu = Gpu(Mode.SERIAL, work_conserving=work_conserving)
        limited, third = [gpu.add(core=percent) for percent in percents], gpu.add()
        while any(script.client.standing is not ClientStanding.THROTTLED for script in limited):
            assert gpu.now < 2000.0
            gpu.run(0.1)
        gpu.leave(third)
        return gpu, limited

    gpu, limited = throttled(work_conserving=False)
    assert runs(*limited) == [False, False]
    while not any(runs(*limited)):
        assert gpu.now < 2000.0
        gpu.run(0.01)
    assert runs(*throttled(work_conserving=True)[1]) == runs(*limited)


def test_by_default_no_client_borrows() -> None:
    gpu = Gpu(Mode.SERIAL)
    limited = gpu.add(core=25)
    gpu.run(60.0)
    assert gpu.billed_s(limited) == pytest.approx(15.0, abs=1.0)


def test_two_that_run_together_borrow_nothing() -> None:
    gpu = Gpu(work_conserving=True)
    limited, other = gpu.add(core=10), gpu.add()
    gpu.run(60.0)
    assert gpu.billed_s(limited) == pytest.approx(6.0, abs=1.0)
    gpu.leave(other)
    gpu.run(60.0)
    assert gpu.billed_s(limited) == pytest.approx(66.0, abs=2.0)


def test_a_client_does_not_borrow_where_the_memory_of_a_revoked_one_is_in_its_way() -> None:
    gpu = Gpu(Mode.SERIAL, work_conserving=True, fence=Fence.NONE)
    deaf = gpu.start(5)
    gpu.perform(gpu.policy.measure_memory(deaf.client, 5 * GIB, None, gpu.now))
    other = gpu.start(3)
    gpu.run(70.0)
    assert deaf.client.turn.revoked
    gpu.release(other)
    limited = gpu.add(core=25, memory=3 * GIB)
    while limited.client.standing is not ClientStanding.THROTTLED:
        gpu.report(limited, 3)
        assert gpu.now < 2000.0
        gpu.request(other)
        gpu.run(0.5)
    gpu.report(limited, 6)
    gpu.leave(other)
    gpu.run(30.0)
    assert runs(limited) == [False]


# Turns on an empty GPU are measured


def metered(**changes: object) -> Gpu:
    gpu = Gpu(Mode.AUTO, **changes)
    gpu.perform(gpu.policy.meter(gpu.gpu, True, gpu.now))
    return gpu


def test_a_turn_that_begins_on_an_empty_gpu_while_another_waits_is_measured() -> None:
    gpu = metered()
    first, second = gpu.start(6), gpu.start(6)
    gpu.asked.clear()
    gpu.release(first)
    assert runs(second) == [True]
    assert gpu.asked == [], "no other waits"
    gpu.request(first)
    gpu.release(second)
    gpu.request(second)
    gpu.release(first)
    assert runs(first, second) == [False, True]
    gpu.request(first)
    gpu.asked.clear()
    third = gpu.start(6)
    gpu.release(second)
    assert runs(first, third) == [True, False]
    (asked,) = gpu.asked
    assert asked.begin_s == pytest.approx(gpu.now + SETTLE_S)
    assert asked.end_s > asked.begin_s + 0.5


def test_a_turn_that_begins_on_an_empty_gpu_while_another_is_throttled_is_measured() -> None:
    gpu = metered()
    limited = gpu.add(core=25, memory=6 * GIB)
    while limited.client.standing is not ClientStanding.THROTTLED:
        assert gpu.now < 2000.0
        gpu.run(0.1)
    gpu.asked.clear()
    other = gpu.start(6)
    assert runs(limited, other) == [False, True]
    assert len(gpu.asked) == 1


def test_utilisation_needs_no_measurement() -> None:
    gpu = Gpu(Mode.AUTO)
    gpu.perform(gpu.policy.sample_busy(gpu.gpu, 0.5, 1.0, gpu.now))
    first, second, third = (gpu.start(6) for _ in range(3))
    gpu.release(first)
    assert runs(second, third) == [True, False]
    assert gpu.asked == []


def test_a_turn_next_to_another_is_not_measured() -> None:
    gpu = metered()
    light = [gpu.start(3) for _ in range(2)]
    for script in light:
        gpu.gpu.phases.coruns.record_activity((script.client.id,), DeviceActivity(0.1), gpu.now)
    big = gpu.start(9)
    gpu.release(light[0])
    gpu.release(light[1])
    assert runs(big) == [True]
    for script in light:
        gpu.request(script)
    gpu.asked.clear()
    gpu.release(big)
    assert runs(*light) == [True, True]
    assert len(gpu.asked) <= 1


# The anchor


def test_a_client_that_fits_next_to_the_anchor_does_not_take_its_part() -> None:
    gpu = Gpu()
    anchor, fits = gpu.start(4), gpu.start(4)
    assert gpu.gpu.order.anchor is anchor.client
    assert fits.client.service.guest_until_s is None, "its turn lasts a quantum all the same"
    gpu.release(anchor)
    gpu.request(anchor)
    assert runs(anchor) == [True]
    assert gpu.gpu.order.anchor is anchor.client, "it was alone with one that is none"


def test_the_front_takes_the_part_of_the_anchor() -> None:
    gpu = Gpu()
    anchor, other = gpu.start(4), gpu.start(4)
    front = gpu.start(4)
    assert gpu.gpu.order.front is front.client
    gpu.release(other)
    assert runs(anchor, front) == [True, True]
    assert gpu.gpu.order.anchor is front.client


def test_while_the_front_waits_for_it_a_client_inherits_the_part_of_an_anchor_that_has_left() -> None:
    gpu = Gpu()
    anchor, young = gpu.start(3, "ann"), gpu.start(2, "bob")
    front = gpu.start(8, "cid")
    gpu.run(3.0)
    gpu.release(anchor)
    assert runs(front, young) == [False, True]
    assert gpu.gpu.order.anchor is young.client
    gpu.run(36.9)
    assert dropped(young) == [False]
    gpu.run(0.2)
    assert dropped(young) == [True], "40 s after it began"


def test_of_several_the_one_whose_turn_lasts_longest_inherits_it() -> None:
    gpu = Gpu()
    anchor, first = gpu.start(3, "ann"), gpu.start(2, "bob")
    gpu.run(2.0)
    second = gpu.start(2, "cid")
    gpu.run(2.0)
    front = gpu.start(9, "dan")
    gpu.release(anchor)
    assert runs(first, second, front) == [True, True, False]
    assert gpu.gpu.order.anchor is second.client


def test_a_turn_that_has_lasted_a_quantum_ends_when_the_anchor_leaves() -> None:
    gpu = Gpu()
    anchor, old = gpu.start(3, "ann"), gpu.start(2, "bob")
    gpu.run(50.0)
    front = gpu.start(8, "cid")
    assert dropped(anchor, old) == [True, True]
    gpu.release(anchor)
    gpu.release(old)
    assert runs(front) == [True]
    assert gpu.gpu.order.anchor is front.client


def test_a_guest_does_not_inherit_it() -> None:
    gpu = Gpu()
    anchor, deaf, front = gpu.start(3, "ann"), gpu.start(3, "bob"), gpu.start(9, "cid")
    while dropped(anchor, deaf) != [True, True]:
        assert gpu.now < 2000.0
        gpu.run(0.1)
    gpu.run(5.1)
    guest = gpu.start(2, "dan")
    gpu.release(anchor)
    assert runs(deaf, guest, front) == [True, True, False]
    assert gpu.gpu.order.anchor is anchor.client
    assert dropped(guest) == [False], "the other one would still be in the way"
    gpu.release(deaf)
    assert dropped(guest) == [True]


def test_when_the_anchor_leaves_the_next_client_of_its_owner_runs_if_the_owner_has_had_less_than_the_others() -> None:
    gpu = Gpu()
    front = gpu.start(8, "cid")
    anchor, other = gpu.start(4, "ann"), gpu.start(3, "bob")
    gpu.run(30.0)
    gpu.release(front)
    assert runs(anchor, other) == [True, True]
    gpu.request(front)
    following = gpu.start(5, "ann")
    gpu.run(20.0)
    assert runs(anchor, other, front, following) == [True, True, False, False]
    gpu.release(anchor)
    assert runs(other, front, following) == [True, False, True]
    assert following.client.service.guest_until_s is None


def test_room_that_is_due_when_the_anchor_leaves_is_made_for_the_front() -> None:
    gpu = Gpu()
    front, old = gpu.start(5, "cid"), gpu.start(3, "bob")
    anchor = gpu.start(4, "ann")
    gpu.run(24.0)
    gpu.release(front)
    assert gpu.gpu.order.anchor is anchor.client
    gpu.report(front, 8)
    gpu.request(front)
    following = gpu.start(5, "ann")
    gpu.run(20.0)
    assert dropped(anchor, old) == [False, False], "both are in the way, and one of them has more time"
    gpu.release(anchor)
    assert dropped(old) == [True]
    assert runs(following) == [False], "its owner has had less, but is behind the front"
    gpu.release(old)
    assert runs(front, following) == [True, False]


# Deadlines


def test_the_deadline_is_when_the_turns_in_the_way_have_lasted_a_quantum() -> None:
    gpu = Gpu()
    gpu.start(4)
    assert gpu.policy.next_deadline_s() == NEVER
    gpu.run(1.0)
    gpu.start(8)
    assert gpu.policy.next_deadline_s() == pytest.approx(gpu.now + 39.0)


def test_by_utilisation_it_is_at_the_latest_when_that_is_not_known_any_more() -> None:
    gpu = Gpu(Mode.AUTO)
    gpu.perform(gpu.policy.sample_busy(gpu.gpu, 0.5, 1.0, gpu.now))
    gpu.start(5)
    gpu.start(5)
    assert gpu.policy.next_deadline_s() == pytest.approx(gpu.now + 5.0)
    gpu = metered()
    gpu.start(5)
    gpu.start(5)
    assert gpu.policy.next_deadline_s() == pytest.approx(gpu.now + 25.0)


def test_where_turns_are_exclusive_it_is_after_the_shortest_quantum() -> None:
    gpu = Gpu(Mode.SERIAL)
    holder, _, _ = gpu.start(8), gpu.start(1), gpu.start(1)
    gpu.run(1.0)
    gpu.release(holder)
    assert gpu.policy.next_deadline_s() == pytest.approx(gpu.now + 10.0)
