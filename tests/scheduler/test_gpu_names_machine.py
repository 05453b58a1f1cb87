"""Exclusive turns under arbitrary silence, start order and names: no device ever has two exclusive holders."""

import random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from gpucommons.config.scheduler import SchedulerSettings
from gpucommons.scheduler.policy.devices import GpuFacts
from gpucommons.scheduler.policy.state import GIB, Client, ClientStanding, Mode
from gpucommons.scheduler.protocol.wire import MessageType, Version
from scheduler.client_machine import MANY, WHO, ClientMachine, with_clients, with_room
from scheduler.named_world import GPUS, NAMES, NamedWorld
from scheduler.world import Peer

MODES = (Mode.SERIAL, Mode.SERIAL, Mode.AUTO, Mode.CONCURRENT)


class NamesMachine(ClientMachine):
    world: NamedWorld

    @initialize(mode=st.sampled_from(MODES), count=st.integers(0, len(GPUS)))
    def begin(self, mode: Mode, count: int) -> None:
        self.world = NamedWorld(SchedulerSettings(mode=mode), count)

    @with_room
    @rule(name=st.sampled_from(NAMES), version=st.sampled_from([1, 2, 2, 2]), core=st.sampled_from([100, 100, 50]))
    def join(self, name: str, version: Version, core: int) -> None:
        self.world.join_named(name, version, core)
        self.world.ask(self.world.peers[-1])

    @with_clients
    @rule(who=WHO, used=st.integers(0, 12))
    def memory(self, who: int, used: int) -> None:
        self.world.memory(self.pick(who), used * GIB)

    @rule(mig=st.booleans(), missed=st.integers(0, 3), total=st.sampled_from([8, 16, 80]))
    def read(self, mig: bool, missed: int, total: int) -> None:
        self.world.read(mig=mig, missed=missed, total_bytes=total * GIB)

    @rule()
    def read_nothing(self) -> None:
        self.world.read_nothing()

    @rule()
    def plug(self) -> None:
        self.world.plug()

    @rule(which=st.integers(0, 3), renumber=st.booleans())
    def lose(self, which: int, renumber: bool) -> None:
        self.world.lose(which, renumber)

    @rule(seconds=st.sampled_from([0.001, 0.3, 4.0, 12.0, 40.0]), obey=st.booleans())
    def advance(self, seconds: float, obey: bool) -> None:
        self.world.advance(seconds, obey=obey)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.read()
            self.world.check()
            self.world.check_every_name_is_resolved()
            self.world.check_every_client_runs()
            self.world.check()


TestNamesMachine = NamesMachine.TestCase
STEPS_PER_WALK = 60


def random_step(world: NamedWorld, dice: random.Random) -> None:
    """Mostly clients that come and ask, and a driver that answers rarely."""
    lot = dice.random()
    if lot < 0.25 and len(world.peers) < MANY:
        world.join_named(dice.choice(NAMES), dice.choice((1, 2, 2, 2)), dice.choice((100, 100, 50)))
        world.ask(world.peers[-1])
    elif lot < 0.6 and world.peers:
        dice.choice((world.ask, world.ask, world.release, world.leave))(dice.choice(world.peers))
    elif lot < 0.8:
        world.advance(dice.choice((0.01, 1.0, 11.0, 31.0)), obey=dice.random() < 0.7)
    elif lot < 0.89:
        world.read(mig=dice.random() < 0.7, missed=dice.choice((0, 0, 1, 2, 3)))
    elif lot < 0.9:
        world.read_nothing()
    elif lot < 0.95:
        world.plug()
    else:
        world.lose(dice.randrange(4), dice.random() < 0.5)


@pytest.mark.long
def test_many_walks(walk_steps: int) -> None:
    for seed in range(walk_steps // STEPS_PER_WALK):
        dice = random.Random(seed)
        world = NamedWorld(SchedulerSettings(mode=dice.choice(MODES)), dice.randrange(len(GPUS) + 1))
        for _ in range(STEPS_PER_WALK):
            random_step(world, dice)
            world.check()
        world.read()
        world.check_every_name_is_resolved()
        world.check_every_client_runs()
        world.check()


def serial_world(count: int = 1) -> NamedWorld:
    return NamedWorld(SchedulerSettings(mode=Mode.SERIAL), count)


def join(world: NamedWorld, name: str) -> Peer:
    world.join_named(name, 2, 100)
    world.ask(world.peers[-1])
    return world.peers[-1]


def standings(*peers: Peer) -> list[str]:
    return [peer.client.standing.value for peer in peers]


def test_a_turn_goes_along_when_its_gpu_becomes_known() -> None:
    world = serial_world(2)
    first, second, other = (join(world, name) for name in ("0", "", "1"))
    assert standings(first, second, other) == ["running", "waiting", "waiting"]
    world.advance(2.0)
    world.read()
    assert [peer.client.gpu.key for peer in (first, second, other)] == ["GPU-a1", "GPU-a1", "GPU-b1"]
    assert standings(first, second, other) == ["running", "waiting", "running"]
    assert world.sent[MessageType.DROP_LOCK] == 0
    world.advance(3.0)
    world.release(first)
    assert first.client.turn.billed_s == 5.0
    assert first.client.turn.count == 1
    assert standings(second) == ["running"]
    world.check()


def test_a_silent_driver_takes_no_name_away() -> None:
    world = serial_world()
    world.read()
    holder = join(world, "")
    late = [join(world, name) for name in ("0", "GPU-a1", "all", "GPU-a")]
    assert {peer.client.gpu.key for peer in (holder, *late)} == {"GPU-a1"}
    assert standings(holder, *late) == ["running", *["waiting"] * 4]


def test_waiters_keep_their_order_when_they_move() -> None:
    world = serial_world()
    early = [join(world, name) for name in ("0", "all", "GPU-a1", "")]
    world.read()
    for peer in early:
        assert standings(peer) == ["running"]
        world.release(peer)


def test_where_a_turn_meets_another_the_newer_one_is_dropped_and_no_one_else_joins() -> None:
    """It takes a GPU that gets the index of one that no reading had: the client cannot really use it, but is served."""
    world = serial_world(2)
    world.read()
    astray = join(world, "2")
    world.advance(1.0)
    holder, early = join(world, "1"), join(world, "2")
    world.advance(1.0)
    waiter = join(world, "GPU-b1")
    assert standings(astray, early, holder, waiter) == ["running", "waiting", "running", "waiting"]
    world._perform(world.devices.update([GpuFacts("GPU-a1", 0), GpuFacts("GPU-b1", 2)], world.now))
    assert [peer.must_drop for peer in (astray, holder)] == [False, True]
    gpu = holder.client.gpu
    assert list(gpu.turns.running.values()) == [astray.client, holder.client]
    world.release(holder)
    assert standings(astray, early, holder, waiter) == ["running", "waiting", "idle", "waiting"]
    world.release(astray)
    assert standings(early, waiter) == ["running", "waiting"]
    world.check()


def test_a_client_keeps_its_gpu_when_the_numbers_change() -> None:
    world = serial_world(3)
    world.read()
    second = join(world, "1")
    world.lose(0, renumber=True)
    newcomer = join(world, "0")
    assert second.client.gpu is newcomer.client.gpu
    assert standings(newcomer) == ["waiting"]


def test_a_gpu_that_a_reading_misses_keeps_its_name_and_its_queue() -> None:
    world = serial_world(2)
    world.read()
    holder = join(world, "1")
    for lapse in ("missed", "nothing", "missed"):
        if lapse == "missed":
            world.read(missed=1)
        else:
            world.read_nothing()
        assert {join(world, name).client.gpu for name in ("1", "GPU-b1", "GPU-b")} == {holder.client.gpu}
        world.check()


def test_a_mig_device_in_use_keeps_its_name_and_number_where_a_reading_misses_it() -> None:
    world = serial_world(2)
    world.read()
    holder = join(world, "1:1")
    assert holder.client.gpu.key == "MIG-2"
    world.read(mig=False)
    assert join(world, "MIG-2").client.gpu is holder.client.gpu
    for peer in list(world.peers):
        world.leave(peer)
    world.read(mig=False)
    world.read(mig=True)
    assert join(world, "1:1").client.gpu.key == "MIG-2"


def always_asking(read_at: int) -> tuple[list[tuple[float, int, str]], ClientStanding]:
    """One client with a quota of 25 percent that asks again whenever it had to stop: its messages of 40 s, and how it
    stood when its GPU became known."""
    world = serial_world()
    world.join_named("0", 2, 25)
    (peer,) = world.peers
    stood = ClientStanding.IDLE
    for step in range(400):
        if step == read_at:
            stood = peer.client.standing
            world.read()
        if peer.client.standing is ClientStanding.IDLE:
            world.ask(peer)
        world.advance(0.1, obey=True)
    world.check()
    return [(round(at_s, 6), id, message) for at_s, id, message in world.log], stood


def test_a_quota_that_moves_goes_on_as_if_it_had_not() -> None:
    unmoved, _ = always_asking(0)
    assert always_asking(201) == (unmoved, ClientStanding.RUNNING)
    assert always_asking(206) == (unmoved, ClientStanding.THROTTLED)


def test_debts_and_revocations_move_too() -> None:
    world = NamedWorld(SchedulerSettings(mode=Mode.SERIAL, revoke_after_s=5.0), 1)
    world.join_named("0", 2, 25)
    deaf = world.peers[0]
    world.ask(deaf)
    world.memory(deaf, 4 * GIB)
    world.advance(6.0)
    assert deaf.client.turn.revoked
    bucket = deaf.client.quota.bucket
    assert bucket is not None
    balance_s = bucket.balance_s
    assert balance_s < 0
    world.nvml(deaf, 4 * GIB)
    world.check()
    world.read()
    world.nvml(deaf, 4 * GIB)
    gpu = deaf.client.gpu
    assert (gpu.key, gpu.memory.held_bytes, gpu.turns.revoked) == ("GPU-a1", 4 * GIB, {deaf.client.id: deaf.client})
    assert bucket.balance_s == balance_s
    world.ask(deaf)
    assert deaf.client.standing is ClientStanding.THROTTLED
    world.check()


def test_the_world_sees_two_exclusive_holders() -> None:
    """The check itself: it finds a second queue of the same GPU."""
    world = serial_world()
    world.read()
    join(world, "0")
    stray = Client(99, world.policy.add_gpu("0", None, world.now))
    world._true[99] = "GPU-a1"
    world.peers.append(Peer(stray))
    world._perform(world.policy.register(stray, world.now))
    world.ask(world.peers[-1])
    assert len(world.holders("GPU-a1")) == 2
