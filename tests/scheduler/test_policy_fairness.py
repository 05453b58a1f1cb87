"""Every owner has its share of a GPU whose clients do not fit into memory together, whatever they need and do.

The share is max-min fair in time with a turn: while n owners request the GPU, each has at least 1/n of the time, and
each of the k clients of an owner 1/k of that. A client that fits next to others has more.
"""

from collections import Counter
from dataclasses import dataclass
from itertools import permutations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpucommons.config.scheduler import SchedulerSettings
from gpucommons.scheduler.policy.state import GIB, ClientStanding, Mode
from scheduler.simulation import Script, Simulation
from tiers import in_long_tier
from unhurried import costly

# How much less than its share an owner may have.
SLACK = 0.8
# A quantum of the largest clients here, 9 GiB.
QUANTUM_S = 45.0
SAMPLE_S = 2.0


class Gpu(Simulation):
    """A GPU of 10 GiB, 9 of them safe. `demands` are the activities of its clients alone, if it is measured."""

    def __init__(self, *, measured: bool = False, **changes: object) -> None:
        super().__init__(SchedulerSettings(default_gpu_memory_gb=10.0, **changes))  # type: ignore[arg-type]
        self.measured = measured
        self.demands: dict[int, float] = {}
        self.ran_s: Counter[int] = Counter()
        self.owner_ran_s: Counter[str] = Counter()
        if measured:
            self.sample()

    def start(self, gib: float, *, owner: str = "", demand: float = 1.0) -> Script:
        script = self.add(tail_s=0.01, memory=int(gib * GIB), owner=owner, request=False)
        self.demands[script.client.id] = demand
        self.request(script)
        return script

    def request(self, script: Script) -> None:
        self.perform(self.policy.request(script.client, self.now))

    def rest(self, script: Script) -> None:
        """The client releases its turn, or no longer waits for one; it requests none until it is asked to."""
        script.holds = False
        if script.client.standing is ClientStanding.RUNNING:
            self.perform(self.policy.release(script.client, self.now))
        else:
            self.perform(self.policy.withdraw(script.client, self.now))

    def leave(self, script: Script) -> None:
        script.holds = False
        self.perform(self.policy.disconnect(script.client, self.now))

    def sample(self) -> None:
        busy = min(1.0, sum(self.demands[id] for id in self.gpu.turns.running))
        self.perform(self.policy.sample_busy(self.gpu, busy, 0.9, self.now))

    def play(self, seconds: float) -> None:
        end_s = self.now + seconds
        while self.now < end_s:
            self.run(min(SAMPLE_S, end_s - self.now))
            if self.measured:
                self.sample()

    def pass_until(self, when_s: float) -> None:
        if when_s > self.now:
            for client in self.gpu.turns.running.values():
                self.ran_s[client.id] += when_s - self.now  # type: ignore[assignment]
            for owner in {client.owner for client in self.gpu.turns.running.values()}:
                self.owner_ran_s[owner] += when_s - self.now  # type: ignore[assignment]
        super().pass_until(when_s)


@dataclass(frozen=True)
class Part:
    owner: str
    gib: float
    demand: float


PARTS = st.builds(
    Part,
    owner=st.sampled_from(["", "", "", "ann", "bob", "cid"]),
    gib=st.one_of(st.integers(1, 9).map(float), st.floats(0.25, 12.0)),
    demand=st.one_of(st.sampled_from([0.1, 0.3, 0.5, 0.95, 1.0]), st.floats(0.05, 1.0)),
)
CROWDS = st.lists(PARTS, min_size=2, max_size=8)


@pytest.mark.long
@given(CROWDS, st.sampled_from(Mode), st.booleans())
@example([Part("", gib, 0.1) for gib in (2, 6, 8, 2, 8, 2)], Mode.AUTO, True)
@example([Part("ann", gib, 0.1) for gib in (2, 6, 8, 2, 8, 2)], Mode.AUTO, True)
@example([Part("ann", 1, 0.05), Part("bob", 3, 0.05), Part("bob", 5, 0.2), Part("ann", 8, 0.5)], Mode.AUTO, True)
@example([Part("ann", 9, 0.3), Part("ann", 6, 0.5), Part("ann", 2, 0.7), Part("", 7, 0.2)], Mode.CONCURRENT, False)
@example([Part("bob", 3, 1), Part("bob", 6.53, 1), Part("cid", 2.99, 1), Part("cid", 3.43, 1)], Mode.AUTO, False)
@example([Part("", gib, 1.0) for gib in (2, 4.15, 2.45, 5)], Mode.CONCURRENT, False)
@example([Part("", gib, 1.0) for gib in (1, 3, 9, 5, 9, 9, 1, 8)], Mode.SERIAL, True)
@example(
    # The fourth fits by memory, but not next to the activity of the last.
    [
        Part("bob", 6, 0.1),
        Part("", 8, 0.1),
        Part("", 3, 0.1),
        Part("", 6.5573774588406, 0.5),
        Part("", 1.647982328451184, 0.1),
        Part("", 7, 0.1),
        Part("", 6, 0.95),
        Part("bob", 1, 0.5600186954816826),
    ],
    Mode.AUTO,
    True,
)
# The turns that end for the third are requested again at once, and fit next to the first.
@example([Part("bob", 1, 0.1), Part("", 3, 0.7), Part("bob", 7, 0.1), Part("cid", 3, 0.2)], Mode.CONCURRENT, True)
def test_every_client_gets_its_share_for_any_memory_and_demand(parts: list[Part], mode: Mode, measured: bool) -> None:
    gpu = Gpu(mode=mode, measured=measured)
    scripts = [gpu.start(part.gib, owner=part.owner, demand=part.demand) for part in parts]
    clients = [script.client for script in scripts]
    of_owner = Counter(client.owner for client in clients)
    time_s = 600.0 * len(parts)
    gpu.play(time_s)
    share_s = time_s / len(of_owner)
    for owner, count in of_owner.items():
        assert gpu.owner_ran_s[owner] >= SLACK * share_s, (owner, gpu.owner_ran_s)
        for client in clients:
            if client.owner == owner:
                assert gpu.ran_s[client.id] >= SLACK * share_s / count, (client.id, gpu.ran_s)
    for (less, one), (more, other) in permutations(zip(parts, clients, strict=True), 2):
        alone = of_owner[one.owner] == of_owner[other.owner] == 1
        if alone and less.gib <= more.gib and less.demand <= more.demand:
            assert gpu.ran_s[one.id] >= SLACK * gpu.ran_s[other.id], (one.id, other.id, gpu.ran_s)


def play_with_releases(gpu: Gpu, scripts: list[Script], periods_s: dict[int, float], seconds: float) -> None:
    """Clients that release their turns early and request again at once: at these intervals, by index."""
    end_s = gpu.now + seconds
    due_s = {index: gpu.now + period_s * (0.3 + 0.1 * index) for index, period_s in periods_s.items()}
    while gpu.now < end_s:
        gpu.play(max(0.001, min([end_s, *due_s.values()]) - gpu.now))
        for index, period_s in periods_s.items():
            if gpu.now >= due_s[index]:
                due_s[index] = gpu.now + period_s
                if scripts[index].client.standing is ClientStanding.RUNNING:
                    gpu.rest(scripts[index])
                    gpu.request(scripts[index])


RELEASES = st.dictionaries(st.integers(0, 7), st.sampled_from([0.5, 1.0, 3.0, 10.0, 30.0, 60.0]), max_size=4)


@pytest.mark.long
@costly(40)
@given(CROWDS, RELEASES, st.sampled_from(Mode), st.booleans())
# Two that hardly use their turns keep the least account low.
@example([Part("", 9, 0.95), Part("", 2, 1.0), Part("ann", 2, 0.1)], {2: 0.5}, Mode.SERIAL, True)
@example([Part("", 8, 0.1), Part("cid", 8, 0.3), Part("ann", 7, 0.5)], {0: 10.0, 1: 0.5}, Mode.AUTO, True)
# Turns that begin again and again in the room of another.
@example([Part("", 8, 0.95), Part("ann", 3, 0.3), Part("", 8, 0.95)], {0: 1.0, 1: 3.0}, Mode.AUTO, False)
@example(
    [Part("cid", 6, 1), Part("cid", 6, 1), Part("", 9, 1), Part("", 6, 1)], {0: 0.5, 3: 30.0}, Mode.CONCURRENT, True
)
@example(
    [Part("", 4, 0.3), Part("", 5, 0.95), Part("cid", 1, 0.3), Part("cid", 4, 0.3), Part("ann", 2, 0.1)],
    {0: 10.0, 2: 0.5, 4: 1.0},
    Mode.AUTO,
    True,
)
# The last was let past another, and goes on when the anchor has released.
@example(
    [Part("", 5, 1), Part("", 4.6, 0.95), Part("ann", 6, 0.1), Part("", 1.5, 0.5)], {1: 1.0, 2: 3.0}, Mode.AUTO, True
)
@example(
    [Part("", 1, 1.0), Part("cid", 4, 0.1), Part("cid", 9, 0.3), Part("", 6, 0.3), Part("", 9, 0.5)],
    {1: 10.0, 2: 10.0, 3: 1.0},
    Mode.CONCURRENT,
    True,
)
# The front waits for a client of its own owner that has run for long: room is made at once.
@example(
    [Part("cid", 4, 0.95), Part("cid", 1, 0.5), Part("", 4, 0.3), Part("", 7, 0.3), Part("", 8, 0.1)],
    {3: 1.0},
    Mode.AUTO,
    True,
)
# An owner whose clients hardly use their turns always waits with another client.
@example(
    [
        Part("ann", 7, 0.7),
        Part("cid", 3.4, 0.95),
        Part("cid", 4.8, 0.4),
        Part("cid", 2.4, 1),
        Part("cid", 8, 0.95),
        Part("", 5.7, 0.95),
        Part("ann", 9, 1),
        Part("", 7.8, 0.1),
    ],
    {1: 1.0, 2: 1.0},
    Mode.SERIAL,
    True,
)
def test_clients_that_release_their_turns_early_take_nothing_from_others(
    parts: list[Part], releases_s: dict[int, float], mode: Mode, measured: bool
) -> None:
    gpu = Gpu(mode=mode, measured=measured)
    scripts = [gpu.start(part.gib, owner=part.owner, demand=part.demand) for part in parts]
    of_owner = Counter(script.client.owner for script in scripts)
    periods_s = {index: period_s for index, period_s in releases_s.items() if index < len(parts)}
    releasing = {scripts[index].client.owner for index in periods_s}
    time_s = 600.0 * len(parts)
    play_with_releases(gpu, scripts, periods_s, time_s)
    share_s = time_s / len(of_owner)
    for client in (script.client for script in scripts):
        if client.owner not in releasing:
            assert gpu.owner_ran_s[client.owner] >= SLACK * share_s, (client.owner, gpu.owner_ran_s)
            assert gpu.ran_s[client.id] >= SLACK * share_s / of_owner[client.owner], (client.id, gpu.ran_s)


@dataclass(frozen=True)
class Visitor:
    """An owner's client that disconnects after each life and connects again."""

    part: Part
    life_s: float
    away_s: float


def play_with_visitors(gpu: Gpu, visitors: list[Visitor], seconds: float) -> None:
    end_s = gpu.now + seconds
    present: list[Script | None] = [gpu.start(v.part.gib, owner=v.part.owner, demand=v.part.demand) for v in visitors]
    due_s = [gpu.now + visitor.life_s * (0.3 + 0.1 * index) for index, visitor in enumerate(visitors)]
    while gpu.now < end_s:
        gpu.play(max(0.001, min([end_s, *due_s]) - gpu.now))
        for index, visitor in enumerate(visitors):
            script = present[index]
            if gpu.now >= due_s[index] and script is not None:
                gpu.leave(script)
                present[index] = None
                due_s[index] += visitor.away_s
            if gpu.now >= due_s[index] and present[index] is None:
                part = visitor.part
                present[index] = gpu.start(part.gib, owner=part.owner, demand=part.demand)
                due_s[index] = gpu.now + visitor.life_s


STEADY = st.lists(PARTS.map(lambda part: Part(part.owner or "bob", part.gib, part.demand)), min_size=1, max_size=5)
VISITORS = st.lists(
    st.builds(
        Visitor,
        part=PARTS.map(lambda part: Part({"": "xen", "ann": "yan"}.get(part.owner, "zoe"), part.gib, part.demand)),
        life_s=st.sampled_from([0.5, 1.0, 3.0, 10.0, 50.0, 120.0]),
        away_s=st.sampled_from([0.0, 0.5, 3.0, 10.0]),
    ),
    min_size=1,
    max_size=4,
)


@pytest.mark.long
@costly(40)
@given(STEADY, VISITORS, st.sampled_from(Mode), st.booleans())
# The anchor has disconnected, next to a client that goes on.
@example(
    [Part("ann", 6, 1), Part("bob", 3.8, 1), Part("bob", 8, 0.4), Part("cid", 2, 0.1), Part("cid", 1, 0.1)],
    [Visitor(Part("yan", gib, 1), 0.5, away_s) for gib, away_s in ((3.7, 3.0), (3.7, 0.0), (1.0, 3.0))],
    Mode.AUTO,
    False,
)
# Another owner's client inherits its part before those that wait behind it pass: else they are guests, and soon end.
@example(
    [Part("bob", gib, 1) for gib in (5.6, 4, 1.8, 1, 6.6)],
    [
        Visitor(Part("xen", 4.7, 0.1), 1.0, 3.0),
        Visitor(Part("xen", 2, 0.2), 50.0, 0.0),
        Visitor(Part("xen", 9, 1), 50.0, 0.0),
        Visitor(Part("zoe", 6.8, 0.6), 50.0, 0.0),
    ],
    Mode.CONCURRENT,
    False,
)
def test_owners_that_connect_again_and_again_take_nothing_from_others(
    steady: list[Part], visitors: list[Visitor], mode: Mode, measured: bool
) -> None:
    gpu = Gpu(mode=mode, measured=measured)
    scripts = [gpu.start(part.gib, owner=part.owner, demand=part.demand) for part in steady]
    owners = {part.owner for part in steady} | {visitor.part.owner for visitor in visitors}
    of_owner = Counter(part.owner for part in steady)
    time_s = 500.0 * (len(steady) + len(visitors))
    play_with_visitors(gpu, visitors, time_s)
    share_s = time_s / len(owners)
    for client in (script.client for script in scripts):
        assert gpu.owner_ran_s[client.owner] >= SLACK * share_s, (client.owner, gpu.owner_ran_s)
        assert gpu.ran_s[client.id] >= SLACK * share_s / of_owner[client.owner], (client.id, gpu.ran_s)


PERIODS = st.lists(st.integers(300, 1500), min_size=1, max_size=4)


@given(
    st.lists(st.tuples(st.integers(1, 9), PERIODS), min_size=2, max_size=5),
    st.sampled_from([Mode.SERIAL, Mode.CONCURRENT]),
)
def test_what_one_does_not_request_is_divided_among_the_others(crowd: list[tuple[int, list[int]]], mode: Mode) -> None:
    """Clients that come and go: each has its share of the time in which it requests the GPU."""
    gpu = Gpu(mode=mode)
    scripts = [gpu.start(gib) for gib, _ in crowd]
    changes_s = [[sum(periods[: n + 1]) for n in range(len(periods))] for _, periods in crowd]
    asks, share_s = [True] * len(crowd), [0.0] * len(crowd)
    begin_s = gpu.now
    for until_s in sorted({when for changes in changes_s for when in changes}):
        elapsed_s = begin_s + until_s - gpu.now
        gpu.play(elapsed_s)
        for index, requests in enumerate(asks):
            share_s[index] += elapsed_s / sum(asks) if requests else 0.0
        for index, script in enumerate(scripts):
            if until_s in changes_s[index]:
                asks[index] = not asks[index]
                if asks[index]:
                    gpu.request(script)
                else:
                    gpu.rest(script)
    for index, script in enumerate(scripts):
        # A client that returns waits for the turns that have begun.
        waits_s = QUANTUM_S * 2 * (1 + len(crowd[index][1]) // 2)
        assert gpu.ran_s[script.client.id] >= SLACK * share_s[index] - waits_s, (index, gpu.ran_s, share_s)


def two_of_eight() -> tuple[Gpu, Script, Script]:
    gpu = Gpu(mode=Mode.CONCURRENT)
    return gpu, gpu.start(8), gpu.start(8)


def gained_s(gpu: Gpu, seconds: float, *scripts: Script) -> list[float]:
    before_s = [gpu.ran_s[script.client.id] for script in scripts]
    gpu.play(seconds)
    return [gpu.ran_s[script.client.id] - before for script, before in zip(scripts, before_s, strict=True)]


def test_idleness_saves_nothing() -> None:
    gpu, one, other = two_of_eight()
    third = gpu.start(8)
    gpu.play(500.0)
    gpu.rest(third)
    gpu.play(2000.0)
    gpu.request(third)
    newcomer = gpu.start(8)
    for gained in gained_s(gpu, 1600.0, one, other, third, newcomer):
        assert gained == pytest.approx(400.0, abs=QUANTUM_S)


def test_a_new_client_of_an_owner_has_no_claim_to_what_the_other_one_had() -> None:
    simulation = Simulation(SchedulerSettings(mode=Mode.SERIAL))
    first = simulation.add(owner="alice")
    simulation.add(owner="bob")
    simulation.run(3600.0)
    simulation.add(owner="alice")
    before_s = simulation.billed_s(first)
    simulation.run(1200.0)
    assert simulation.billed_s(first) - before_s == pytest.approx(300.0, abs=60.0)


def test_a_time_alone_is_not_held_against_a_client() -> None:
    gpu = Gpu(mode=Mode.CONCURRENT)
    first = gpu.start(8)
    gpu.play(5000.0)
    gpu.rest(first)
    gpu.play(10.0)
    others = [gpu.start(8) for _ in range(2)]
    gpu.play(10.0)
    gpu.request(first)
    for gained in gained_s(gpu, 1200.0, first, *others):
        assert gained == pytest.approx(400.0, abs=QUANTUM_S)


def test_a_client_that_always_fitted_does_not_wait_long_once_it_no_longer_fits() -> None:
    gpu, _, _ = two_of_eight()
    small = gpu.start(1)
    gpu.play(20_000.0)
    assert gpu.ran_s[small.client.id] > 19_000.0
    gpu.perform(gpu.policy.update_memory(small.client, 3 * GIB, gpu.now))
    gpu.play(50.0)
    assert small.client.standing is ClientStanding.WAITING
    assert gained_s(gpu, 300.0, small) > [0.0]
    assert gained_s(gpu, 1200.0, small)[0] >= SLACK * 400.0


def test_an_owner_that_connects_again_for_each_turn_gains_nothing() -> None:
    gpu, one, other = two_of_eight()
    begin_s, churning = gpu.now, gpu.start(8, owner="cid")
    while gpu.now < begin_s + 3000.0:
        gpu.play(1.0)
        if churning.client.turn.drop_s is not None or (churning.client.turn.count and not churning.holds):
            gpu.leave(churning)
            churning = gpu.start(8, owner="cid")
    assert gpu.owner_ran_s["cid"] <= 1000.0 + 2 * QUANTUM_S
    assert min(gpu.ran_s[script.client.id] for script in (one, other)) >= SLACK * 1000.0


def test_an_owner_that_leaves_before_its_turn_ends_gains_nothing() -> None:
    """Its client runs for 30 s, less than a quantum, disconnects, and connects again at once."""
    gpu, one, other = two_of_eight()
    begin_s, churning = gpu.now, gpu.start(8, owner="cid")
    while gpu.now < begin_s + 3000.0:
        gpu.play(1.0)
        if churning.holds and gpu.now - churning.client.turn.begun_s >= 30.0:
            gpu.leave(churning)
            churning = gpu.start(8, owner="cid")
    assert gpu.owner_ran_s["cid"] <= 1000.0 + 2 * QUANTUM_S
    assert min(gpu.ran_s[script.client.id] for script in (one, other)) >= SLACK * 1000.0


@pytest.mark.parametrize("life_s", [1, 4, *in_long_tier(2, 10)])
@pytest.mark.parametrize("every_s", [0.5, 1.0, 2.0, 3.0, 5.0])
def test_a_steady_client_keeps_its_half_whatever_another_owner_starts(every_s: float, life_s: float) -> None:
    gpu = Gpu(mode=Mode.AUTO)
    steady = gpu.start(6, owner="ann")
    begin_s, living = gpu.now, []
    for number in range(round(600.0 / every_s)):
        due_s = begin_s + number * every_s
        gpu.play(due_s - gpu.now)
        living.append((due_s + life_s, gpu.start(6, owner="bob")))
        for end_s, script in list(living):
            if gpu.now >= end_s:
                gpu.leave(script)
                living.remove((end_s, script))
    assert gpu.ran_s[steady.client.id] >= 0.45 * (gpu.now - begin_s)


def test_few_owners_that_left_are_remembered() -> None:
    gpu, _, _ = two_of_eight()
    for number in range(2000):
        script = gpu.start(0.5, owner=f"uid:{number}")
        gpu.play(2.0)
        gpu.leave(script)
    assert len(gpu.gpu.order.departed_s) <= 256
    assert len(gpu.gpu.order.lines) == 2
