"""Programs and owners in the policy: how long a program is stopped, and how turns are divided between owners."""

import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucommons.config.scheduler import SchedulerSettings
from gpucommons.scheduler.corun.coruns import LOOK_S, LOOK_SLACK_S, Way
from gpucommons.scheduler.policy.evaluation import wait_reason
from gpucommons.scheduler.policy.state import GIB, NEVER, ClientStanding, Mode
from gpucommons.scheduler.protocol.wire import MessageType, Version
from scheduler.world import Peer, World
from unhurried import costly

QUANTUM_S = SchedulerSettings().turn_quantum_s
MAX_PAUSE_S = SchedulerSettings().max_pause_s
DELAY_S = 0.004
# A deep queue.
SLOW_S = 0.45
# A round of a division that mixes turns and running together.
ROUND_S = 2.0


def metered(**changes: object) -> World:
    world = World(SchedulerSettings(**changes))  # type: ignore[arg-type]
    world.resize(100 * GIB)
    world.meter(available=True)
    return world


def begin(world: World, sm: float = 0.8, owner: str = "", core: int = 100) -> Peer:
    peer = world.start_program(core, owner, sm)
    world.ask(peer)
    return peer


def ran_s(world: World, peers: list[Peer], seconds: float) -> list[float]:
    """The seconds in which each of these clients was alone or together on the GPU, as billed."""
    before = [billed_s(world, peer) for peer in peers]
    world.advance(seconds, obey=True, delay_s=DELAY_S)
    return [billed_s(world, peer) - was for peer, was in zip(peers, before, strict=True)]


def billed_s(world: World, peer: Peer) -> float:
    clock = world.gpu.turns.clock
    clock.advance(world.now)
    runs = peer.client.standing is ClientStanding.RUNNING
    return peer.client.turn.billed_s + (clock.billed_s - peer.client.turn.mark_s if runs else 0.0)


# Programs that their users stop, and calls that hang


def takes_turns(world: World) -> bool:
    return world.gpu.phases.current is not None and world.gpu.phases.current.way is Way.TURNS


def in_turns(world: World) -> list[Peer]:
    """The owner of one program and that of two."""
    peers = [begin(world, owner=owner) for owner in ("ann", "bob", "bob")]
    world.advance(10.0, obey=True, delay_s=DELAY_S)
    assert takes_turns(world)
    return peers


def test_a_stopped_program_holds_no_turn_and_is_not_measured_again_when_it_goes_on() -> None:
    world = metered()
    stopped, *others = in_turns(world)
    world.withdraw(stopped)
    assert sum(ran_s(world, others, 10.0)) == pytest.approx(10.0, abs=0.3)
    assert stopped.client.standing is ClientStanding.IDLE
    ways = set()
    for _ in range(4):
        world.rejoin(stopped)
        for _ in range(20):
            world.advance(0.05, obey=True, delay_s=DELAY_S)
            assert world.gpu.phases.current is not None
            ways.add(world.gpu.phases.current.way)
        assert world.gpu.turns.running.keys() | world.gpu.order.waiting.keys() == {
            one.client.id for one in (stopped, *others)
        }
        world.withdraw(stopped)
        world.advance(1.0, obey=True, delay_s=DELAY_S)
    assert Way.TURNS in ways
    assert Way.MEASURING not in ways, "no program is paused to measure it"


@pytest.mark.parametrize("drop", [True, False], ids=["lock", "unlock"])
def test_no_program_waits_for_a_call_that_hangs(drop: bool) -> None:
    world = metered()
    peers = in_turns(world)
    runs = next(peer for peer in peers if peer.client.standing is ClientStanding.RUNNING)
    if drop:
        world.advance(1.0)
        assert runs.must_drop, "its turn should end"
    world.hang(runs, hangs=True)
    assert all(peer.client.standing is ClientStanding.RUNNING for peer in peers)
    drops = world.sent[MessageType.DROP_LOCK]
    world.advance(4.0)
    assert world.sent[MessageType.DROP_LOCK] == drops, "no other is paused meanwhile"
    world.hang(runs, hangs=False)
    world.advance(5.0, obey=True, delay_s=DELAY_S)
    assert takes_turns(world)


def test_a_program_that_leaves_while_its_call_hangs_leaves_nothing_behind() -> None:
    world = metered()
    *_, last = in_turns(world)
    begin(world, owner="bob")
    world.hang(last, hangs=True)
    world.leave(last)
    world.advance(5.0, obey=True, delay_s=DELAY_S)
    assert not world.gpu.turns.hung
    assert takes_turns(world)


# How long a program is stopped


@costly(12)
@given(st.lists(st.sampled_from([0.02, 0.3, 0.5, 0.8]), min_size=2, max_size=8))
def test_every_program_runs_within_its_quanta(activities: list[float]) -> None:
    """While the same n programs compete, each is stopped for at most n quanta, or one round of a mixed division, and
    for the measuring phases: all of them once alone, one trial."""
    world = metered()
    peers = [begin(world, sm) for sm in activities]
    count = len(peers)
    bound_s = max(count * QUANTUM_S, ROUND_S) + count * (LOOK_S + LOOK_SLACK_S) + 2 * (count + 1) * DELAY_S
    for _ in range(80):
        world.advance(1.0, obey=True, delay_s=DELAY_S)
        world.check()
    assert world.longest_pause_s <= bound_s
    assert all(peer.grants or peer.holds for peer in peers)


def shuffle(world: World, dice: random.Random, delay_s: float, cores: Sequence[int]) -> None:
    """Programs and clients come, go, change and compete; all obey."""
    peers = world.peers
    lot = dice.random()
    peer = dice.choice(peers) if peers else None
    if peer is None or (lot < 0.2 and len(peers) < 8):
        sm, owner, core = dice.choice((0.02, 0.3, 0.8)), dice.choice(("", "ann", "bob")), dice.choice(cores)
        world.ask(world.join(2, core, owner, sm) if dice.random() < 0.3 else world.start_program(core, owner, sm))
    elif lot < 0.3:
        world.leave(peer)
    elif lot < 0.4 and peer.client.is_program:
        world.withdraw(peer)
    elif lot < 0.6 and not peer.must_drop:
        world.ask(peer)
    elif lot < 0.65:
        world.meter(dice.random() < 0.8)
    elif lot < 0.75:
        peer.sm = dice.choice((0.02, 0.3, 0.8))
    elif lot < 0.8:
        world.memory(peer, dice.choice((1, 4, 12)) * GIB)
    elif lot < 0.82:
        world.mode(dice.choice(tuple(Mode)))
    world.advance(dice.choice((0.05, 0.3, 1.0, 5.0)), obey=True, delay_s=delay_s)


@pytest.mark.long
@pytest.mark.parametrize("cores", [(100,), (100, 1, 10, 25)], ids=["no quotas", "quotas"])
@pytest.mark.parametrize("quantum_s", [None, 3.0, 60.0], ids=["default", "3 s", "60 s"])
def test_no_program_is_stopped_for_too_long(quantum_s: float | None, cores: tuple[int, ...]) -> None:
    """The pauser never has to resume one by itself, whatever quantum an operator sets."""
    for seed in range(30):
        dice = random.Random(seed)
        world = World(SchedulerSettings(turn_quantum_s=dice.choice((0.05, 0.25, 1.0))))
        world.meter(available=True)
        if quantum_s is not None:
            world.quantum(quantum_s)
        for _ in range(100):
            shuffle(world, dice, dice.choice((DELAY_S, DELAY_S, SLOW_S)), cores)
            world.check()
        assert world.resumed_by_pauser == 0, seed
        assert world.longest_pause_s <= MAX_PAUSE_S


@pytest.mark.long
@pytest.mark.parametrize("count", [20, 64])
def test_many_programs_share_without_long_pauses(count: int) -> None:
    world = metered()
    peers = [begin(world) for _ in range(count)]
    ran_s(world, peers, 40.0)
    shares = ran_s(world, peers, 60.0)
    assert world.resumed_by_pauser == 0
    assert world.longest_pause_s <= MAX_PAUSE_S
    assert min(shares) >= 60.0 / count * 0.7


def test_a_lone_program_is_never_stopped_and_nothing_is_measured() -> None:
    world = metered()
    peer = begin(world)
    world.start_program(100, "", 0.8)
    world.advance(300.0, obey=True)
    assert peer.holds
    assert not world.log[2:], "only SCHED_ON was sent"
    assert not world.measurements


def test_a_program_that_stops_after_its_revocation_is_resumed() -> None:
    world = metered()
    # The owner of two programs and that of one take turns.
    peers = [begin(world, owner="ann"), begin(world, owner="bob"), begin(world, owner="bob")]
    world.advance(4.0)
    slow = next(peer for peer in peers if peer.must_drop)
    world.advance(31.0)
    assert slow.client.turn.revoked
    world.paused(slow)
    world.check()
    world.advance(5.0, obey=True)
    assert not slow.client.turn.revoked
    assert slow.grants


def test_a_program_that_cannot_be_stopped_runs_until_the_next_attempt() -> None:
    world = metered()
    peers = [begin(world, core=10), begin(world, core=10)]
    world.advance(0.5)
    stubborn = next(peer for peer in peers if peer.must_drop)
    world.not_paused(stubborn, 5.0)
    world.advance(4.9, obey=True, delay_s=DELAY_S)
    assert not stubborn.must_drop
    assert stubborn.holds
    world.advance(0.2)
    assert stubborn.must_drop


@pytest.mark.parametrize("mode", [Mode.SERIAL, Mode.CONCURRENT])
def test_only_a_quota_stops_a_program_outside_of_phases(mode: Mode) -> None:
    world = metered(mode=mode)
    free, limited = begin(world), begin(world, core=25)
    clients = [world.join(2, 100), world.join(2, 100)]
    for client in clients:
        world.memory(client, 60 * GIB)
        world.nvml(client, 60 * GIB)
        world.ask(client)
    world.advance(60.0, obey=True, delay_s=DELAY_S)
    world.check()
    assert (free.grants, free.stopped_s) == (0, NEVER)
    assert limited.grants > 0
    assert {client.client.standing for client in clients} == {ClientStanding.RUNNING, ClientStanding.WAITING}


# Memory turns


@pytest.mark.parametrize("with_program", [False, True])
def test_where_memory_is_switched_programs_continue_and_light_clients_run_together(with_program: bool) -> None:
    world = metered()
    world.resize(20 * GIB)
    programs = [begin(world, 0.1)] if with_program else []
    for program in programs:
        world.nvml(program, 2 * GIB)
    light = [world.join(2, 100, sm=0.2), world.join(2, 100, sm=0.3)]
    heavy = world.join(2, 100, sm=0.9)
    for peer, size in ((light[0], 5), (light[1], 5), (heavy, 12)):
        world.memory(peer, size * GIB)
    seen: Counter[frozenset[int]] = Counter()
    for _ in range(600):
        for peer in (*light, heavy):
            if not peer.holds:
                world.ask(peer)
        world.advance(1.0, obey=True, delay_s=DELAY_S)
        world.check()
        seen[frozenset(world.gpu.turns.running) - {program.client.id for program in programs}] += 1
    assert all((program.stopped_s, program.grants) == (NEVER, 0) for program in programs)
    both = frozenset(peer.client.id for peer in light)
    if not with_program:
        assert seen[both] > 150, "their activities are known and sum to less than the limit"
    assert seen[frozenset({heavy.client.id})] > 150
    assert max(len(group) for group in seen) <= 2


def test_clients_that_are_not_light_take_memory_turns_one_by_one() -> None:
    world = metered()
    world.resize(20 * GIB)
    peers = [world.join(2, 100, sm=sm) for sm in (0.5, 0.5, 0.9)]
    for peer, size in zip(peers, (5, 5, 16), strict=True):
        world.memory(peer, size * GIB)
    together = 0
    for _ in range(1500):
        for peer in peers:
            if not peer.holds:
                world.ask(peer)
        world.advance(1.0, obey=True, delay_s=DELAY_S)
        together += len(world.gpu.turns.running) > 1
    # Together only in the moments in which those that request fit at once.
    assert together < 150
    assert all(peer.grants > 3 for peer in peers)


def test_v1_clients_whose_memory_is_shown_run_together_where_all_fit() -> None:
    world = metered()
    peers = [world.join(1, 100, sm=0.3), world.join(1, 100, sm=0.3)]

    def play(seconds: int) -> int:
        together = 0
        for _ in range(seconds):
            for peer in peers:
                if not peer.holds:
                    world.ask(peer)
            world.advance(1.0, obey=True, delay_s=DELAY_S)
            world.check()
            together += len(world.gpu.turns.running) == 2
        return together

    assert play(30) == 0, "their memory is not known"
    for peer in peers:
        world.nvml(peer, 10 * GIB)
    assert play(30) > 20
    assert not any(peer.client.memory.blind for peer in peers)
    world.nvml(peers[1], 95 * GIB)
    play(5)
    assert play(30) == 0, "they do not fit any more"
    world.nvml(peers[1], None)
    assert peers[1].client.memory.blind
    assert play(30) == 0


# Owners


def served(world: World, peers: list[Peer], seconds: int) -> list[float]:
    """The time that each gets while all of them request again as soon as they have released."""
    before = [billed_s(world, peer) for peer in peers]
    for _ in range(seconds):
        for peer in peers:
            if not peer.holds and not peer.awaits:
                world.ask(peer)
        world.advance(1.0, obey=True, delay_s=DELAY_S)
    world.check()
    return [billed_s(world, peer) - was for peer, was in zip(peers, before, strict=True)]


@pytest.mark.parametrize("kind", ["serial", "v1", "memory"])
def test_twenty_connections_of_one_user_count_as_one(kind: str) -> None:
    world = World(SchedulerSettings(mode=Mode.SERIAL if kind == "serial" else Mode.AUTO))
    version: Version = 1 if kind == "v1" else 2
    many = [world.join(version, 100, "ann") for _ in range(20)]
    single = world.join(version, 100, "bob")
    if kind == "memory":
        for peer in (*many, single):
            world.memory(peer, 10 * GIB)
    seconds = 3000
    shares = served(world, [*many, single], seconds)
    assert shares[-1] / seconds == pytest.approx(0.5, abs=0.03)
    assert min(shares) > 0.5, "every connection has turns"


@pytest.mark.long
def test_twenty_programs_of_one_user_count_as_one() -> None:
    world = metered()
    world.max_activity = 0.6
    many = [begin(world, 0.8, "ann") for _ in range(20)]
    single = begin(world, 0.8, "bob")
    ran_s(world, [single], 60.0)
    shares = ran_s(world, [*many, single], 120.0)
    assert shares[-1] / 120.0 >= 0.5 - 0.03
    assert min(shares) > 0.0


def test_between_connections_each_counts() -> None:
    world = World(SchedulerSettings(mode=Mode.SERIAL, fair_between="clients"))
    peers = [world.join(2, 100, "ann") for _ in range(4)] + [world.join(2, 100, "bob")]
    assert served(world, peers, 2000) == pytest.approx([400.0] * 5, rel=0.1)


def test_an_owner_whose_client_leaves_the_queue_keeps_its_place_for_the_next() -> None:
    world = World(SchedulerSettings(mode=Mode.SERIAL))
    running, first, second, other = (world.join(2, 100, owner) for owner in ("ann", "bob", "bob", "cid"))
    for peer in (running, first, second, other):
        world.ask(peer)
    assert [client.id for client in world.gpu.order.in_order()] == [p.client.id for p in (first, other, second)]
    world.leave(first)
    world.check()
    assert [client.id for client in world.gpu.order.in_order()] == [p.client.id for p in (second, other)]
    assert wait_reason(world.policy.terms, second.client, world.now) == "turn"
