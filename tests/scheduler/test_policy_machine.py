"""The policy under arbitrary sequences of events: the invariants are true after each event."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from gpucommons.config.scheduler import SchedulerSettings
from gpucommons.model.gpu import DeviceActivity
from gpucommons.scheduler.policy.attained import service_s
from gpucommons.scheduler.policy.state import GIB, NEVER, ClientStanding, Fence, Mode, SwitchTime
from gpucommons.scheduler.protocol.wire import Version
from scheduler.client_machine import MANY, WHO, ClientMachine, with_clients, with_room
from scheduler.world import Peer, World

MEMORY = st.integers(0, 20).map(lambda quarters: quarters * GIB)
CORE = st.sampled_from([100, 100, 100, 10, 25, 50, 75, 90])
OWNERS = ("", "", "ann", "bob")
OWNER = st.sampled_from(OWNERS)
SM = st.sampled_from([0.02, 0.3, 0.8])

SETTINGS = st.builds(
    SchedulerSettings,
    mode=st.sampled_from(Mode),
    switch_time_mode=st.sampled_from(SwitchTime),
    work_conserving=st.booleans(),
    fence=st.sampled_from(Fence),
    max_bypass_s=st.sampled_from([0.0, 0.001, 5.0]),
    fair_between=st.sampled_from(["owners", "owners", "clients"]),
    drop_tail_billing_percent=st.sampled_from([100.0, 70.0]),
)


class PolicyMachine(ClientMachine):
    world: World

    @initialize(settings=SETTINGS)
    def begin(self, settings: SchedulerSettings) -> None:
        self.world = World(settings)

    @with_room
    @rule(version=st.sampled_from([1, 2, 2, 2]), core=CORE, owner=OWNER, sm=SM)
    def join(self, version: Version, core: int, owner: str, sm: float) -> None:
        self.world.join(version, core, owner, sm)

    @with_room
    @rule(core=CORE, owner=OWNER, sm=SM)
    def start_program(self, core: int, owner: str, sm: float) -> None:
        self.world.ask(self.world.start_program(core, owner, sm))

    def programs(self, holds: bool) -> list[Peer]:
        """Programs that got DROP_LOCK and run still, or that are stopped."""
        peers = [peer for peer in self.world.peers if peer.client.is_program]
        return [peer for peer in peers if (peer.must_drop if holds else peer.stopped_s < NEVER)]

    @with_clients
    @rule(who=WHO)
    def withdraw(self, who: int) -> None:
        if self.pick(who).client.is_program:
            self.world.withdraw(self.pick(who))

    @precondition(lambda self: self.programs(holds=True))
    @rule(who=WHO, again_s=st.sampled_from([0.25, 3.0]))
    def not_paused(self, who: int, again_s: float) -> None:
        stopping = self.programs(holds=True)
        self.world.not_paused(stopping[who % len(stopping)], again_s)

    @precondition(lambda self: self.programs(holds=False))
    @rule(who=WHO, again_s=st.sampled_from([0.25, 10.0]))
    def resumed(self, who: int, again_s: float) -> None:
        stopped = self.programs(holds=False)
        self.world.resumed(stopped[who % len(stopped)], again_s)

    @with_clients
    @rule(who=WHO, hangs=st.booleans())
    def call_hangs(self, who: int, hangs: bool) -> None:
        peer = self.pick(who)
        if peer.client.is_program:
            self.world.hang(peer, hangs)
            waits = [client for client in peer.client.gpu.order.waiting.values() if client.is_program]
            assert not (hangs and waits), "no program waits for a call that hangs"

    @with_clients
    @rule(who=WHO)
    def user_continues(self, who: int) -> None:
        if self.pick(who).client.is_program:
            self.world.rejoin(self.pick(who))

    @rule(available=st.sampled_from([True, True, False]))
    def meter(self, available: bool) -> None:
        self.world.meter(available)

    @rule(sm=st.floats(0, 1), tensor=st.floats(0, 1))
    def measured(self, sm: float, tensor: float) -> None:
        self.world.measured(DeviceActivity(sm, tensor))

    @with_clients
    @rule(who=WHO)
    def ask_too(self, who: int) -> None:
        self.world.ask(self.pick(who))

    @with_clients
    @rule(who=WHO, used=MEMORY)
    def memory(self, who: int, used: int) -> None:
        self.world.memory(self.pick(who), used)

    @with_clients
    @rule(who=WHO, overhead=MEMORY)
    def overhead(self, who: int, overhead: int) -> None:
        self.world.overhead(self.pick(who), overhead // 8)

    @with_clients
    @rule(who=WHO, shown=st.none() | MEMORY)
    def nvml(self, who: int, shown: int | None) -> None:
        self.world.nvml(self.pick(who), shown)

    @with_clients
    @rule(who=WHO, core=CORE)
    def limit(self, who: int, core: int) -> None:
        self.world.limit(self.pick(who), core)

    @rule(mode=st.sampled_from(Mode))
    def mode(self, mode: Mode) -> None:
        self.world.mode(mode)

    @rule(seconds=st.integers(1, 60))
    def quantum(self, seconds: int) -> None:
        self.world.quantum(seconds)

    @rule(on=st.sampled_from([True, True, False]))
    def switch(self, on: bool) -> None:
        self.world.switch(on)

    @rule(ratio=st.floats(0, 1), window_s=st.sampled_from([0.2, 1.0]))
    def busy(self, ratio: float, window_s: float) -> None:
        self.world.busy(ratio, window_s)

    @rule(total=st.sampled_from([8 * GIB, 16 * GIB, 24 * GIB]))
    def resize(self, total: int) -> None:
        self.world.resize(total)

    @rule(
        seconds=st.sampled_from([0.0, 0.001, 0.3, 1.0, 4.0, 12.0, 40.0]),
        obey=st.booleans(),
        delay_s=st.sampled_from([0.0, 0.003, 0.45]),
    )
    def advance(self, seconds: float, obey: bool, delay_s: float) -> None:
        self.world.advance(seconds, obey=obey, delay_s=delay_s)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.check_every_client_runs()
            self.world.check()


TestPolicyMachine = PolicyMachine.TestCase


def random_step(world: World, dice: random.Random) -> None:
    """One step of a walk: mostly requests, releases and time, sometimes another event."""
    peers = world.peers
    if not peers or (len(peers) < MANY and dice.random() < 0.05):
        core, owner, sm = dice.choice((100, 100, 25, 50, 75)), dice.choice(OWNERS), dice.choice((0.02, 0.3, 0.8))
        if dice.random() < 0.3:
            world.ask(world.start_program(core, owner, sm))
        else:
            world.join(dice.choice((1, 2, 2, 2)), core, owner, sm)
        return
    peer = dice.choice(peers)
    steps: list[tuple[int, Callable[[], None]]] = [
        (30, lambda: world.ask(peer)),
        (20, lambda: world.release(peer)),
        (25, lambda: world.advance(dice.choice((0.01, 0.3, 1.0, 5.0, 31.0)), obey=dice.random() < 0.7)),
        (10, lambda: world.memory(peer, dice.randrange(0, 20) * GIB)),
        (8, lambda: world.busy(dice.random(), dice.choice((0.2, 1.0)))),
        (3, lambda: world.limit(peer, dice.choice((100, 10, 25, 50, 75, 90)))),
        (2, lambda: world.leave(peer)),
        (1, lambda: world.mode(dice.choice(tuple(Mode)))),
        (1, lambda: world.switch(dice.random() < 0.8)),
        (2, lambda: world.nvml(peer, dice.choice((None, dice.randrange(0, 20) * GIB)))),
        (1, lambda: world.overhead(peer, dice.randrange(0, 3) * GIB)),
        (1, lambda: world.resize(dice.choice((8, 16, 24)) * GIB)),
        (1, lambda: world.meter(dice.random() < 0.6)),
        (2, lambda: world.measured(DeviceActivity(dice.random(), dice.random()))),
        (3, lambda: program_step(world, peer, dice)),
    ]
    weights = [weight for weight, _ in steps]
    dice.choices([step for _, step in steps], weights)[0]()


def program_step(world: World, peer: Peer, dice: random.Random) -> None:
    """An event that only programs have."""
    if not peer.client.is_program:
        return
    if peer.must_drop:
        world.not_paused(peer, dice.choice((0.25, 3.0)))
    elif peer.stopped_s < NEVER:
        world.resumed(peer, dice.choice((0.25, 10.0)))
    else:
        world.withdraw(peer)


def random_settings(dice: random.Random) -> SchedulerSettings:
    return SchedulerSettings(
        mode=dice.choice(tuple(Mode)),
        work_conserving=dice.random() < 0.3,
        fence=dice.choice(tuple(Fence)),
        max_bypass_s=dice.choice((0.0, 0.001, 5.0)),
        fair_between=dice.choice(("owners", "owners", "clients")),
    )


STEPS_PER_WALK = 200


@pytest.mark.long
def test_many_walks(walk_steps: int) -> None:
    for seed in range(walk_steps // STEPS_PER_WALK):
        dice = random.Random(seed)
        world = World(random_settings(dice))
        for _ in range(STEPS_PER_WALK):
            random_step(world, dice)
            world.check()
        world.check_every_client_runs()
        world.check()


def contended_step(world: World, dice: random.Random) -> None:
    """A step under contention: mostly requests, and releases of the running client."""
    holders = [peer for peer in world.peers if peer.client.standing is ClientStanding.RUNNING]
    lot = dice.random()
    if lot < 0.45 and world.peers:
        world.ask(dice.choice(world.peers))
    elif lot < 0.8 and holders:
        world.release(dice.choice(holders))
    elif lot < 0.9:
        world.advance(dice.choice((0.001, 0.5, 4.0)), obey=True)
    elif lot < 0.93 and len(world.peers) < MANY:
        world.join(dice.choice((1, 2)), 100, dice.choice(OWNERS))
    else:
        random_step(world, dice)


def walk(seed: int, *, hand_over: bool) -> World:
    dice = random.Random(seed)
    settings = replace(random_settings(dice), mode=dice.choice((Mode.SERIAL, Mode.SERIAL, Mode.AUTO)))
    world = World(settings, hand_over=hand_over)
    for _ in range(STEPS_PER_WALK):
        contended_step(world, dice)
    return world


def accounts(world: World) -> list[tuple[float, ...]]:
    """What each client and its owner have had, and the least of those that they are compared with."""
    found: list[tuple[float, ...]] = []
    for peer in world.peers:
        service, order = peer.client.service, peer.client.gpu.order
        line = service.line
        found.append(
            (
                round(service.served_s, 9),
                service.ran_s,
                service.released,
                round(service_s(line, world.now), 9),
                round(line.floor_s, 9),
                round(line.luck_s, 9),
                0.0 if line.running else line.ran_s,
                round(order.floor_s, 9),
                order.room_s,
            )
        )
    return found


def test_the_fast_path_of_a_release_gives_the_same_actions() -> None:
    """The policy is deterministic, and the fast path of a release does the same as the slow one."""
    handed_over = 0
    for seed in range(60):
        short, again, long = (walk(seed, hand_over=way) for way in (True, True, False))
        assert short.log == again.log == long.log
        bills = [
            [(peer.client.turn.count, round(peer.client.turn.billed_s, 9)) for peer in world.peers]
            for world in (short, long)
        ]
        assert bills[0] == bills[1]
        assert accounts(short) == accounts(long)
        assert short.gpu.memory.running_bytes == long.gpu.memory.running_bytes
        handed_over += short.handed_over
    assert handed_over > 300


def small_world(mode: Mode) -> World:
    """9 GiB for clients."""
    return World(SchedulerSettings(mode=mode, default_gpu_memory_gb=10.0))


def test_turns_are_measured_where_activity_is_known_though_they_follow_each_other() -> None:
    world = small_world(Mode.AUTO)
    world.meter(True)
    first, second, third = (world.join(1, 100) for _ in range(3))
    for peer in (first, second, third):
        world.ask(peer)
    world.release(first)
    assert [peer.holds for peer in (first, second, third)] == [False, True, False]
    world.measured(DeviceActivity(0.4))
    assert world.gpu.phases.coruns.solo_activity(second.client.id) == DeviceActivity(0.4)


def started(world: World, gib: int = 1) -> Peer:
    peer = world.join(2, 100)
    world.memory(peer, gib * GIB)
    world.ask(peer)
    world.check()
    return peer


def test_a_turn_in_left_over_room_that_is_alone_in_the_end_is_followed_by_the_next() -> None:
    world = small_world(Mode.CONCURRENT)
    anchor, guest = started(world), started(world)
    world.release(anchor)
    world.mode(Mode.SERIAL)
    waits = started(world)
    world.release(guest)
    world.check()
    assert waits.holds


def test_a_client_that_turns_were_ended_for_and_that_a_revoked_one_blocked_is_next_when_that_has_left() -> None:
    world = small_world(Mode.SERIAL)
    deaf = started(world, 5)
    world.nvml(deaf, 5 * GIB)
    big, small, last = started(world, 6), started(world, 3), started(world, 3)
    world.advance(65.0)
    assert deaf.client.turn.revoked
    assert small.holds
    world.leave(deaf)
    world.release(small)
    world.check()
    assert big.holds
    world.release(big)
    world.check()
    assert last.holds
