"""The policy's rules, one by one."""

import pytest

from gpucommons.base.peers import ClientProcess
from gpucommons.config.scheduler import SchedulerSettings
from gpucommons.scheduler.policy.evaluation import wait_reason
from gpucommons.scheduler.policy.quotas import NO_LIMITS
from gpucommons.scheduler.policy.state import GIB, PROGRAM, ClientStanding, Fence, Mode, SwitchTime
from gpucommons.scheduler.protocol.wire import MessageType
from gpucommons.scheduler.service.state_reader import FRONT, read_client
from scheduler.simulation import Script, Simulation

T = MessageType


def simulation(**changes: object) -> Simulation:
    """A GPU of 10 GiB, 9 of them safe."""
    return Simulation(SchedulerSettings(default_gpu_memory_gb=10.0, **changes))  # type: ignore[arg-type]


def running(sim: Simulation) -> set[int]:
    return set(sim.gpu.turns.running)


def runs(script: Script) -> bool:
    return script.client.standing is ClientStanding.RUNNING


def release(sim: Simulation, script: Script) -> None:
    script.holds = False
    sim.perform(sim.policy.release(script.client, sim.now))


def report(sim: Simulation, script: Script, used_bytes: int) -> None:
    sim.perform(sim.policy.update_memory(script.client, used_bytes, sim.now))


# Which clients may run together


def test_serial_is_one_at_a_time() -> None:
    sim = simulation(mode=Mode.SERIAL)
    first, second = sim.add(), sim.add()
    assert runs(first)
    assert not runs(second)
    release(sim, first)
    assert runs(second)


def test_clients_that_fit_run_together() -> None:
    sim = simulation()
    scripts = [sim.add(memory=3 * GIB) for _ in range(4)]
    assert [runs(script) for script in scripts] == [True, True, True, False]
    assert scripts[3].received[-1] is T.WAIT_FOR_MEM
    release(sim, scripts[1])
    assert runs(scripts[3])
    assert scripts[3].received[-2:] == [T.MEM_AVAILABLE, T.LOCK_OK]


def test_a_client_larger_than_the_gpu_runs_alone() -> None:
    sim = simulation()
    assert runs(sim.add(memory=30 * GIB))


def test_the_need_includes_the_overhead() -> None:
    sim = simulation()
    sim.add(memory=4 * GIB)
    second = sim.add(memory=4 * GIB, request=False)
    sim.perform(sim.policy.measure_memory(second.client, None, 2 * GIB, sim.now))
    sim.perform(sim.policy.request(second.client, sim.now))
    assert not runs(second)


def test_v1_clients_run_alone_because_their_memory_is_not_known() -> None:
    for mode, together in ((Mode.AUTO, False), (Mode.CONCURRENT, True)):
        sim = simulation(mode=mode)
        sim.add(version=1)
        assert [runs(sim.add(version=1)), runs(sim.add(version=2))] == [together, together]


def test_v1_clients_get_no_message_about_memory() -> None:
    sim = simulation()
    sim.add(memory=9 * GIB)
    old = sim.add(version=1)
    sim.run(11.0)
    assert set(old.received) <= {T.SCHED_ON, T.LOCK_OK, T.DROP_LOCK}


# What wakes a waiter


def test_a_smaller_neighbour_makes_room_at_once() -> None:
    sim = simulation()
    big = sim.add(memory=8 * GIB)
    waiter = sim.add(memory=4 * GIB)
    assert not runs(waiter)
    report(sim, big, 5 * GIB)
    assert runs(waiter)


def test_its_own_shrinking_lets_a_waiter_in() -> None:
    sim = simulation()
    sim.add(memory=6 * GIB)
    waiter = sim.add(memory=6 * GIB)
    report(sim, waiter, 3 * GIB)
    assert runs(waiter)


def test_a_leaver_a_larger_gpu_and_another_mode_make_room() -> None:
    for wake in ("disconnect", "resize", "mode"):
        sim = simulation(mode=Mode.SERIAL if wake == "mode" else Mode.AUTO)
        holder, waiter = sim.add(memory=4 * GIB), sim.add(memory=4 * GIB if wake == "mode" else 8 * GIB)
        assert not runs(waiter)
        if wake == "disconnect":
            sim.perform(sim.policy.disconnect(holder.client, sim.now))
        elif wake == "resize":
            sim.perform(sim.policy.resize(sim.gpu, 80 * GIB, sim.now))
        else:
            sim.perform(sim.policy.set_mode(Mode.CONCURRENT, sim.now))
        assert runs(waiter)


def test_serial_mode_ends_the_turns_of_all_but_the_oldest() -> None:
    sim = simulation(mode=Mode.CONCURRENT)
    scripts = [sim.add() for _ in range(3)]
    sim.perform(sim.policy.set_mode(Mode.SERIAL, sim.now))
    sim.run(0.1)
    assert running(sim) == {scripts[0].client.id}


# Quantum


def dropped_after(sim: Simulation, script: Script) -> float | None:
    """How long from now until this client gets DROP_LOCK."""
    begin = sim.now
    for _ in range(4000):
        sim.run(0.1)
        if T.DROP_LOCK in script.received:
            return round(sim.now - begin, 1)
    return None


@pytest.mark.parametrize(("memory_gib", "expected_s"), [(0, 10.0), (1, 10.0), (4, 20.0), (12, 60.0), (100, 300.0)])
def test_the_quantum_grows_with_the_memory_to_be_moved(memory_gib: int, expected_s: float) -> None:
    sim = simulation(mode=Mode.SERIAL)
    holder = sim.add(memory=memory_gib * GIB)
    sim.perform(sim.policy.measure_memory(holder.client, memory_gib * GIB, None, sim.now))
    sim.add()
    assert dropped_after(sim, holder) == pytest.approx(expected_s, abs=0.11)


@pytest.mark.parametrize("claimed", [100 * GIB, 2**64 - 1])
@pytest.mark.parametrize("seen", [None, 1 * GIB])
def test_a_turn_does_not_grow_with_memory_that_nvml_does_not_confirm(claimed: int, seen: int | None) -> None:
    sim = simulation(mode=Mode.SERIAL)
    sim.perform(sim.policy.resize(sim.gpu, 80 * GIB, sim.now))
    holder, other = sim.add(memory=claimed), sim.add(memory=claimed)
    for script in (holder, other):
        sim.perform(sim.policy.measure_memory(script.client, seen, None, sim.now))
    assert dropped_after(sim, holder) == pytest.approx(10.0, abs=0.11)


def test_a_fixed_quantum_and_one_set_by_the_operator() -> None:
    fixed = simulation(mode=Mode.SERIAL, switch_time_mode=SwitchTime.FIXED, switch_time_fixed_s=25.0)
    holder = fixed.add()
    fixed.add()
    assert dropped_after(fixed, holder) == pytest.approx(25.0, abs=0.11)
    fixed = simulation(mode=Mode.SERIAL)
    holder = fixed.add()
    fixed.add()
    fixed.run(2.0)
    fixed.perform(fixed.policy.set_quantum(3.0, fixed.now))
    assert dropped_after(fixed, holder) == pytest.approx(1.0, abs=0.11)


def test_no_client_is_dropped_while_none_waits() -> None:
    sim = simulation(mode=Mode.SERIAL)
    holder = sim.add()
    sim.run(1000.0)
    assert T.DROP_LOCK not in holder.received
    sim.add()
    assert T.DROP_LOCK in holder.received


def test_only_the_turns_in_the_way_are_ended() -> None:
    sim = simulation()
    old, young = sim.add(memory=3 * GIB), sim.add(memory=3 * GIB)
    sim.add(memory=5 * GIB)
    sim.run(60.0)
    assert T.DROP_LOCK in old.received
    assert young.received.count(T.DROP_LOCK) <= old.received.count(T.DROP_LOCK)


def test_the_turn_of_ones_own_owner_ends_first() -> None:
    sim = simulation()
    bob = sim.add(memory=4 * GIB, owner="bob")
    sim.run(5.0)
    first, second = (sim.add(memory=4 * GIB, owner="ann") for _ in range(2))
    assert [runs(bob), runs(first), runs(second)] == [True, True, False]
    sim.run(30.0)
    assert [runs(bob), runs(first), runs(second)] == [True, False, True]
    assert T.DROP_LOCK not in bob.received, "it had more, but it is not in the way"


def test_waiters_take_turns_for_ever() -> None:
    sim = simulation(mode=Mode.SERIAL)
    scripts = [sim.add(tail_s=0.2) for _ in range(5)]
    sim.run(600.0)
    shares = [sim.billed_s(script) / 600.0 for script in scripts]
    assert shares == pytest.approx([0.2] * 5, abs=0.02)


# Passing


def test_a_small_client_may_pass_a_big_waiter_for_a_while_only() -> None:
    sim = simulation(max_bypass_s=5.0)
    sim.add(memory=5 * GIB)
    big = sim.add(memory=8 * GIB)
    assert runs(sim.add(memory=1 * GIB))
    sim.run(5.0)
    assert not runs(sim.add(memory=1 * GIB))
    assert not runs(big)


def test_a_big_waiter_is_served_however_many_small_ones_come() -> None:
    sim = simulation()
    for _ in range(3):
        sim.add(memory=2 * GIB)
    big = sim.add(memory=9 * GIB)
    begin = sim.now
    while not big.received.count(T.LOCK_OK):
        sim.add(memory=1 * GIB)
        sim.run(1.0)
        assert sim.now - begin < 150.0, "starved"
    # At most two quanta of being passed (45 s for 9 GiB), and one more for those that run by then.
    assert sim.now - begin <= 3 * 45.0 + 1.0


def test_waiters_behind_a_hundred_others_are_served() -> None:
    sim = simulation()
    sim.add(memory=9 * GIB)
    scripts = [sim.add(memory=5 * GIB) for _ in range(100)]
    for script in list(sim.scripts.values()):
        script.tail_s = 0.0
    sim.perform(sim.policy.set_quantum(0.1, sim.now))
    sim.run(30.0)
    assert all(T.LOCK_OK in script.received for script in scripts)


# Overload


def test_overload_leaves_the_oldest_and_ends_with_a_margin() -> None:
    sim = simulation()
    first, second = sim.add(tail_s=0.5), sim.add(tail_s=0.5)
    report(sim, first, 5 * GIB)
    report(sim, second, 5 * GIB)
    assert sim.gpu.memory.overloaded
    assert T.DROP_LOCK not in first.received
    assert second.received[-1] is T.DROP_LOCK
    assert not runs(sim.add())
    sim.run(0.6)
    assert not sim.gpu.memory.overloaded
    assert running(sim) >= {first.client.id}
    assert second.received[-1] is T.WAIT_FOR_MEM
    # 4 + 5 would be within the safe limit, but not with the margin that one dropped for memory must keep.
    report(sim, first, 4 * GIB)
    assert not runs(second)
    report(sim, first, 3 * GIB)
    assert runs(second)


def test_overload_lasts_until_there_is_a_margin() -> None:
    sim = simulation()
    first, slow = sim.add(), sim.add(tail_s=20.0)
    report(sim, first, 5 * GIB)
    report(sim, slow, 5 * GIB)
    report(sim, first, 3 * GIB + GIB // 2)
    newcomer = sim.add(memory=GIB // 4)
    assert not runs(newcomer), "8.5 of 9 GiB are in use: within the limit, and above nine tenths of it"
    report(sim, first, 3 * GIB)
    assert runs(slow)
    assert runs(newcomer)


def test_one_that_grows_alone_is_no_overload() -> None:
    sim = simulation()
    report(sim, sim.add(), 50 * GIB)
    assert not sim.gpu.memory.overloaded


# Clients that do not stop


def share_of_honest(revoke_after_s: float, quantum_s: float, tail_s: float | None, over_s: float = 60.0) -> float:
    """What a client gets next to one that keeps each turn for `tail_s` too long, or until it is revoked, and then goes
    on in another process of the same owner."""
    sim = simulation(
        mode=Mode.SERIAL,
        switch_time_mode=SwitchTime.FIXED,
        switch_time_fixed_s=quantum_s,
        revoke_after_s=revoke_after_s,
    )
    honest = sim.add(owner="uid:1002")
    deaf = sim.add(owner="uid:1001", obeys=tail_s is not None, tail_s=tail_s or 0.0)
    ran_s, end_s, turns = 0.0, sim.now + over_s, 0
    while sim.now < end_s:
        before_s, ran = sim.now, runs(honest)
        sim.run(0.01)
        ran_s += (sim.now - before_s) if ran else 0.0
        if deaf.client.turn.count and not runs(deaf):
            turns += 1
            pid = 100 + turns
            sim.leave(deaf)
            process = ClientProcess(1001, pid, pid)
            deaf = sim.add(owner="uid:1001", obeys=tail_s is not None, tail_s=tail_s or 0.0, process=process)
    assert turns > 2, "the other one has turns, too"
    return ran_s


@pytest.mark.parametrize(("revoke_after_s", "tail_s"), [(5.0, None), (5.0, 4.9), (2.0, None), (5.0, 0.5)])
def test_a_deaf_client_gains_nothing_by_a_new_process_for_each_turn(
    revoke_after_s: float, tail_s: float | None
) -> None:
    assert share_of_honest(revoke_after_s, 1.0, tail_s) >= 27.0


def test_with_the_default_times_as_well() -> None:
    assert share_of_honest(30.0, 10.0, None, over_s=600.0) >= 270.0


def test_a_deaf_process_does_not_lock_out_the_others_of_its_owner() -> None:
    sim = simulation(mode=Mode.SERIAL, switch_time_mode=SwitchTime.FIXED, switch_time_fixed_s=1.0, revoke_after_s=5.0)
    deaf = sim.add(owner="uid:1001", obeys=False)
    honest, other = sim.add(owner="uid:1001"), sim.add(owner="uid:1002")
    sim.run(10.0)
    sim.leave(deaf)
    before_s = sim.billed_s(honest)
    sim.run(60.0)
    assert sim.billed_s(honest) - before_s >= 27.0
    assert sim.billed_s(other) >= 27.0
    sim.leave(other)
    sim.run(1.1)
    assert runs(honest), "with no other owner it waits for none"


def test_a_client_that_ignores_drop_lock_gets_it_every_five_seconds_and_is_revoked_after_thirty() -> None:
    sim = simulation(mode=Mode.SERIAL)
    deaf, other = sim.add(obeys=False), sim.add(obeys=False)
    sim.run(10.0)
    drops: list[tuple[int, int]] = []
    for second in range(1, 32):
        count = deaf.received.count(T.DROP_LOCK)
        if not drops or count != drops[-1][1]:
            drops.append((second - 1, count))
        sim.run(1.0)
    assert drops == [(0, 1), (5, 2), (10, 3), (15, 4), (20, 5), (25, 6), (30, 7)]
    assert deaf.client.turn.revoked
    assert runs(other)
    assert sim.gpu.turns.drops["revoked"] == 1  # type: ignore[index]
    assert deaf.client.turn.billed_s == pytest.approx(40.0, abs=0.1)


def test_the_others_go_on_where_the_memory_of_the_revoked_allows() -> None:
    sim = simulation(mode=Mode.SERIAL)
    deaf = sim.add(memory=5 * GIB, obeys=False)
    sim.perform(sim.policy.measure_memory(deaf.client, 5 * GIB, None, sim.now))
    big, small = sim.add(memory=6 * GIB), sim.add(memory=3 * GIB)
    sim.run(100.0)
    assert deaf.client.turn.revoked
    assert T.LOCK_OK not in big.received
    assert runs(small)
    sim.perform(sim.policy.disconnect(deaf.client, sim.now))
    sim.run(60.0)
    assert T.LOCK_OK in big.received


def test_the_memory_of_the_revoked_counts_next_to_running_clients() -> None:
    sim = simulation(mode=Mode.CONCURRENT, fence=Fence.NONE)
    deaf = sim.add(memory=3 * GIB, obeys=False)
    sim.perform(sim.policy.measure_memory(deaf.client, 3 * GIB, None, sim.now))
    other = sim.add(memory=7 * GIB)
    sim.run(70.0)
    assert deaf.client.turn.revoked
    sim.perform(sim.policy.disconnect(other.client, sim.now))
    small, waiter = sim.add(memory=3 * GIB), sim.add(memory=4 * GIB)
    assert runs(small)
    assert not runs(waiter), "3 + 3 + 4 of 9 GiB"
    assert wait_reason(sim.policy.terms, waiter.client, sim.now) == "memory"
    sim.run(30.0)
    assert runs(waiter), "the turn in its way was ended"
    assert not runs(small)


def test_a_revoked_client_that_asks_again_is_one_like_all() -> None:
    sim = simulation(mode=Mode.SERIAL)
    deaf, other = sim.add(obeys=False), sim.add()
    sim.run(45.0)
    assert deaf.client.turn.revoked
    sim.perform(sim.policy.request(deaf.client, sim.now))
    assert not deaf.client.turn.revoked
    assert deaf.client.standing is ClientStanding.WAITING
    release(sim, other)
    assert runs(deaf)


MAX_CLAIMED = (1 << 64) - 1


@pytest.mark.parametrize("total", [None, 16 * GIB], ids=["size unknown", "size known"])
def test_a_revoked_client_blocks_only_the_memory_that_nvml_shows(total: int | None) -> None:
    sim = simulation(mode=Mode.SERIAL)
    if total is not None:
        sim.perform(sim.policy.resize(sim.gpu, total, sim.now))
    liar, honest = sim.add(memory=MAX_CLAIMED, obeys=False), sim.add(memory=6 * GIB)
    sim.run(400.0)
    assert liar.client.turn.revoked
    assert runs(honest), "the claim is not confirmed"
    release(sim, honest)
    sim.perform(sim.policy.measure_memory(liar.client, 12 * GIB, None, sim.now))
    sim.perform(sim.policy.request(honest.client, sim.now))
    assert not runs(honest), "NVML confirms it"
    sim.perform(sim.policy.measure_memory(liar.client, 1 * GIB, None, sim.now))
    assert runs(honest)


def test_a_claim_beyond_the_device_is_clamped_and_marked() -> None:
    sim = simulation()
    script = sim.add(memory=MAX_CLAIMED)
    sim.perform(sim.policy.resize(sim.gpu, 16 * GIB, sim.now))
    row = read_client(sim.policy.terms, script.client, NO_LIMITS, FRONT, sim.now)
    assert (row.allocated_bytes, row.allocated_peak_bytes, row.need_bytes) == (16 * GIB, 16 * GIB, 16 * GIB)
    assert row.over_claimed
    report(sim, script, 4 * GIB)
    row = read_client(sim.policy.terms, script.client, NO_LIMITS, FRONT, sim.now)
    assert (row.allocated_bytes, row.over_claimed) == (4 * GIB, False)


def test_a_client_that_reports_too_little_needs_what_nvml_shows() -> None:
    sim = simulation(mode=Mode.CONCURRENT)
    first, second = sim.add(memory=1 * GIB), sim.add(memory=8 * GIB, request=False)
    sim.perform(sim.policy.measure_memory(first.client, 10 * GIB, None, sim.now))
    sim.perform(sim.policy.request(second.client, sim.now))
    assert running(sim) == {first.client.id}


def test_by_default_the_second_revocation_closes_the_connection() -> None:
    sim = simulation(mode=Mode.SERIAL)
    deaf = sim.add(obeys=False)
    sim.add(tail_s=0.1)
    sim.run(45.0)
    assert deaf.client.turn.revoked
    sim.perform(sim.policy.request(deaf.client, sim.now))
    # The other client first gets as much as the deaf one had: 10 s, and 30 s in which it did not stop.
    sim.run(80.0)
    assert deaf.client.id not in sim.policy.clients


@pytest.mark.parametrize("patience_s", [29.0, 31.0], ids=["before the revocation", "after it"])
def test_a_deaf_client_that_connects_again_is_refused_after_its_second_turn(patience_s: float) -> None:
    """For 175 s it ignores DROP_LOCK, disconnects and connects again; another client obeys."""
    sim = simulation(mode=Mode.SERIAL)
    process = ClientProcess(1000, 4711, 1)
    honest = sim.add(tail_s=0.01, process=ClientProcess(1000, 4712, 1))
    begin_s, connected = sim.now, 0
    deaf = None
    while sim.now < begin_s + 175:
        if deaf is None and not sim.policy.is_fenced(process, sim.now):
            deaf, connected = sim.add(obeys=False, version=1, process=process), connected + 1
        sim.run(0.5)
        if deaf is not None and deaf.client.id not in sim.policy.clients:
            deaf = None
        elif deaf is not None and T.DROP_LOCK in deaf.received and runs_late(sim, deaf, patience_s):
            sim.perform(sim.policy.disconnect(deaf.client, sim.now))
            deaf = None
    assert connected == 2
    assert sim.billed_s(honest) > 175 / 2 - 1
    sim.run(700.0)
    assert not sim.policy.is_fenced(process, sim.now), "revocations are forgotten"


def runs_late(sim: Simulation, script: Script, patience_s: float) -> bool:
    return script.client.turn.revoked or (
        script.client.turn.drop_s is not None and sim.now - script.client.turn.drop_s >= patience_s
    )


def test_without_a_fence_a_revoked_process_may_connect_again() -> None:
    sim = simulation(mode=Mode.SERIAL, fence=Fence.NONE)
    process = ClientProcess(1000, 4711, 1)
    for _ in range(3):
        deaf, other = sim.add(obeys=False, process=process), sim.add()
        sim.run(45.0)
        for script in (deaf, other):
            sim.perform(sim.policy.disconnect(script.client, sim.now))
    assert not sim.policy.is_fenced(process, sim.now)


def test_a_fence_cuts_the_revoked_off() -> None:
    sim = simulation(mode=Mode.SERIAL, fence=Fence.DISCONNECT)
    deaf = sim.add(obeys=False)
    sim.add()
    sim.run(45.0)
    assert deaf.client.id not in sim.policy.clients


def test_a_lent_turn_ends_when_another_client_requests_it_and_is_not_evaluated_before() -> None:
    sim = simulation(work_conserving=True, mode=Mode.SERIAL)
    limited, other = sim.add(core=25), sim.add()
    while limited.client.standing is not ClientStanding.THROTTLED:
        sim.run(0.02)
    sim.run(0.1)
    release(sim, other)
    assert runs(limited)
    assert sim.policy.next_deadline_s() == float("inf")
    sim.run(100.0)
    assert runs(limited)
    assert limited.client.quota.bucket is not None
    before_s = limited.client.quota.bucket.balance_s
    sim.perform(sim.policy.request(other.client, sim.now))
    sim.run(20.0)
    assert limited.client.quota.bucket.balance_s <= before_s
    assert runs(other)


# Demand


def measurable(**changes: object) -> Simulation:
    """A GPU whose utilisation is measured: idle so far."""
    sim = simulation(**changes)
    sim.perform(sim.policy.sample_busy(sim.gpu, 0.0, 0.9, sim.now))
    return sim


def with_utilisation(sim: Simulation, seconds: float, demands: dict[int, float]) -> None:
    """Lets time pass with one utilisation sample a second, computed from the clients that ran."""
    for _ in range(round(seconds)):
        sim.run(1.0)
        busy = min(1.0, sum(demands[id] for id in sim.gpu.turns.running))
        sim.perform(sim.policy.sample_busy(sim.gpu, busy, 0.9, sim.now))


def pair(first: float, second: float) -> tuple[Simulation, Script, Script]:
    sim = measurable()
    one, other = sim.add(tail_s=0.01), sim.add(tail_s=0.01)
    with_utilisation(sim, 300.0, {one.client.id: first, other.client.id: second})
    return sim, one, other


def demands(sim: Simulation, *scripts: Script) -> list[float | None]:
    found = [sim.gpu.phases.coruns.solo_activity(script.client.id) for script in scripts]
    return [None if activity is None else activity.sm for activity in found]


def test_who_gives_way_to_one_that_waits_for_memory_does_not_slip_in_before_it() -> None:
    sim = measurable()
    small, other, big = (sim.add(tail_s=0.01, memory=size * GIB) for size in (3, 3, 8))
    busy = {small.client.id: 0.3, other.client.id: 0.3, big.client.id: 0.95}
    with_utilisation(sim, 1000.0, busy)
    begun = big.client.turn.count
    with_utilisation(sim, 800.0, busy)
    assert big.client.turn.count - begun >= 9, "a turn of 40 s after each 40 s of the others'"


def test_an_unresponsive_client_does_not_keep_others_from_passing() -> None:
    sim = simulation()
    deaf, big = sim.add(memory=3 * GIB, obeys=False), sim.add(memory=8 * GIB)
    sim.run(41.0)
    assert deaf.client.turn.drop_s is not None
    small = sim.add(memory=3 * GIB)
    assert not runs(small)
    sim.run(5.0)
    assert runs(small)
    assert not runs(big)


def test_a_client_that_stops_slowly_pays_for_it() -> None:
    """The time until it has stopped counts as its own, not as that of the next client."""
    sim = measurable()
    slow, other = sim.add(tail_s=0.3), sim.add(tail_s=0.01)
    with_utilisation(sim, 300.0, {slow.client.id: 0.95, other.client.id: 0.95})
    assert sim.billed_s(slow) / 300.0 == pytest.approx(0.5, abs=0.03)
    assert sim.billed_s(other) / 300.0 == pytest.approx(0.5, abs=0.03)


def test_a_program_does_not_queue_behind_clients_that_run_alone() -> None:
    """Where memory is switched, a program is stopped by nothing but its quota."""
    sim = simulation()
    for _ in range(2):
        sim.add(version=1)
    program = sim.add(version=PROGRAM, core=25)
    standings = set()
    for _ in range(200):
        sim.run(0.1)
        standings.add(program.client.standing)
    assert standings == {ClientStanding.RUNNING, ClientStanding.THROTTLED}


def test_two_that_leave_it_idle_run_together() -> None:
    _, one, other = pair(0.4, 0.4)
    assert runs(one)
    assert runs(other)
    # A turn ends only for the measurement of the other, once a minute at most.
    assert one.client.turn.count + other.client.turn.count < 16


def test_a_missing_measurement_holds_no_client_up() -> None:
    sim = simulation()
    sim.perform(sim.policy.sample_busy(sim.gpu, 0.5, 3600.0, sim.now))
    scripts = [sim.add(tail_s=0.01) for _ in range(3)]
    for _ in range(60):
        sim.run(1.0)
        sim.perform(sim.policy.sample_busy(sim.gpu, 0.5, 3600.0, sim.now))
    assert demands(sim, *scripts) == [None] * 3
    assert len(sim.gpu.turns.running) == 3
