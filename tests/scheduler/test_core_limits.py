"""Core limits in the accounts: the rates of clients that share a GPU, and when a quota is spent or refilled."""

import pytest

from gpucommons.scheduler.corun.coruns import Phase, Way
from gpucommons.scheduler.policy.quota_bucket import QuotaBucket
from gpucommons.scheduler.policy.state import NEVER, Client, ClientStanding, GpuQueue
from scheduler.directed import DirectedGpus

# A window of 2 s has two slices; how often quotas are checked, and half of the longest pause.
SLICE_S, SAMPLE_S, LONGEST_WAIT_S = 1.0, 0.05, 5.0


class LimitedGpus(DirectedGpus):
    def limited(self, percent: int, *, gpu: GpuQueue | None = None, program: bool = False) -> Client:
        client = self.enter_program(gpu=gpu) if program else self.enter(gpu=gpu)
        self.quotas.limit(client, percent, self.now)
        return client

    def running(self, percent: int, *, gpu: GpuQueue | None = None) -> Client:
        client = self.limited(percent, gpu=gpu)
        self.begin(client)
        return client

    def throttled(self, percent: int, debt_s: float, *, program: bool = False) -> Client:
        client = self.limited(percent, program=program)
        bucket(client).balance_s = -debt_s
        self.ask(client)
        assert client.standing is ClientStanding.THROTTLED
        return client

    def spent(self, *, lend: bool = False) -> list[Client]:
        self.gpu.turns.clock.advance(self.now)
        return list(self.quotas.find_spent(self.gpu, lend, self.now))

    def due_s(self) -> float:
        """From now, once the buckets are settled."""
        self.gpu.turns.clock.advance(self.now)
        for client in self.gpu.limits.running.values():
            self.quotas.settle(client, self.now)
        return self.quotas.due(self.gpu, self.now) - self.now


def bucket(client: Client) -> QuotaBucket:
    assert client.quota.bucket is not None
    return client.quota.bucket


def rates(*clients: Client) -> list[float]:
    return [round(bucket(client).rate, 6) for client in clients]


def owe(client: Client, seconds: float) -> None:
    bucket(client).balance_s = -seconds


# Rates


def test_limits_above_a_hundred_in_sum_are_scaled_down() -> None:
    gpus = LimitedGpus()
    idle, first = gpus.limited(75), gpus.running(75)
    assert rates(first) == [0.75], "the other one requests nothing"
    second = gpus.running(25)
    assert rates(first, second) == [0.75, 0.25], "a hundred in sum"
    gpus.ask(idle)
    assert rates(idle, first, second) == pytest.approx([0.75 / 1.75, 0.75 / 1.75, 0.25 / 1.75], abs=1e-6)
    gpus.quotas.limit(first, 50, gpus.now)
    assert rates(idle, first, second) == pytest.approx([0.5, 0.5 / 1.5, 0.25 / 1.5], abs=1e-6)
    gpus.transitions.dequeue(gpus.gpu, idle, gpus.now)
    assert rates(first, second) == [0.5, 0.25]
    gpus.quotas.limit(first, 100, gpus.now)
    assert gpus.gpu.limits.percent == 25
    assert list(gpus.gpu.limits.running.values()) == [second]
    gpus.quotas.limit(first, 90, gpus.now)
    assert rates(first, second) == pytest.approx([0.9 / 1.15, 0.25 / 1.15], abs=1e-6)
    assert list(gpus.gpu.limits.running.values()) == [second, first]


def test_a_balance_fills_at_each_rate_for_as_long_as_it_held() -> None:
    gpus = LimitedGpus()
    waits, runs = gpus.limited(50), gpus.running(50)
    owe(waits, 0.1)
    gpus.ask(waits)
    gpus.now += 1.0
    gpus.gpu.turns.clock.advance(gpus.now)
    other = gpus.running(100)
    gpus.quotas.limit(other, 60, gpus.now)
    assert rates(waits, runs) == pytest.approx([0.3125, 0.3125])
    assert bucket(waits).balance_s == pytest.approx(0.4)
    assert bucket(runs).balance_s == pytest.approx(-0.5)


def test_what_a_client_ran_before_it_had_a_limit_costs_nothing() -> None:
    gpus = LimitedGpus()
    other, client = gpus.running(60), gpus.running(100)
    gpus.now += 1000.0
    gpus.gpu.turns.clock.advance(gpus.now)
    gpus.quotas.limit(client, 60, gpus.now)
    assert rates(other, client) == [0.5, 0.5], "all limits are scaled down at that moment"
    assert bucket(client).balance_s == 0.0


def test_a_client_that_moves_keeps_its_balance_and_is_billed_by_the_clock_of_each_gpu() -> None:
    gpus = LimitedGpus()
    target = gpus.add_gpu()
    there, runs = gpus.running(75, gpu=target), gpus.running(50)
    gpus.now += 1.0
    for gpu in (gpus.gpu, target):
        gpu.turns.clock.advance(gpus.now)
    target.turns.clock.billed_s += 100.0
    gpus.quotas.move(runs, target, gpus.now)
    assert bucket(runs).balance_s == pytest.approx(-0.5)
    assert rates(there, runs) == pytest.approx([0.6, 0.4])
    assert (gpus.gpu.limits.percent, gpus.gpu.limits.scale, target.limits.percent) == (0, 1.0, 125)
    gpus.quotas.settle(runs, gpus.now)
    assert bucket(runs).balance_s == pytest.approx(-0.5), "no time has passed"
    assert list(target.limits.running.values()) == [there, runs]


def test_one_that_requests_nothing_moves_without_its_limit() -> None:
    gpus = LimitedGpus()
    target = gpus.add_gpu()
    gpus.quotas.move(gpus.limited(75), target, gpus.now)
    assert (target.limits.percent, target.limits.running) == (0, {})


def test_the_limit_of_one_that_requests_nothing_does_not_count() -> None:
    gpus = LimitedGpus()
    client = gpus.limited(75)
    gpus.quotas.limit(client, 50, gpus.now)
    assert rates(client) == [0.5]
    for _ in range(2):
        gpus.ask(client)
        assert (gpus.gpu.limits.percent, list(gpus.gpu.limits.clients.values())) == (50, [client])
        gpus.transitions.dequeue(gpus.gpu, client, gpus.now)
        assert (gpus.gpu.limits.percent, gpus.gpu.limits.clients) == (0, {})


# Spent


def test_a_turn_is_over_when_its_quota_is_spent() -> None:
    gpus = LimitedGpus()
    client = gpus.running(50)
    left_s = gpus.due_s()
    assert 0.0 < left_s < SLICE_S
    gpus.now += left_s - 0.01
    assert gpus.spent() == []
    gpus.now += 0.01
    assert gpus.spent() == [client]
    assert bucket(client).throttled
    gpus.drop(client)
    assert gpus.spent() == [], "it was dropped already"
    assert gpus.due_s() == NEVER


def test_a_turn_that_began_with_a_spent_quota_is_looked_at_after_a_moment() -> None:
    gpus = LimitedGpus()
    client = gpus.running(50)
    owe(client, 1.0)
    assert gpus.due_s() == pytest.approx(SAMPLE_S)


@pytest.mark.parametrize("measured", [True, False], ids=["measured", "could not be paused"])
def test_a_turn_goes_on_while_it_is_measured_or_cannot_be_ended(measured: bool) -> None:
    gpus = LimitedGpus()
    gpus.meter()
    client = gpus.running(50)
    owe(client, 1.0)
    if measured:
        phases = gpus.gpu.phases
        phases.current, phases.begun = Phase((client.id,), 3.0, Way.MEASURING), True
        phases.until_s = gpus.now + 3.0
    else:
        gpus.transitions.keep(client, gpus.now + 3.0)
    assert gpus.spent() == []
    assert not bucket(client).throttled
    assert gpus.due_s() == 3.0
    gpus.now += 3.0
    assert gpus.spent() == [client]


def test_one_that_borrows_goes_on_until_it_may_not_any_more() -> None:
    gpus = LimitedGpus()
    client = gpus.running(50)
    owe(client, 1.0)
    assert gpus.spent(lend=True) == []
    assert not bucket(client).throttled
    assert gpus.due_s() == NEVER
    gpus.now += 10.0
    assert gpus.spent(lend=True) == []
    assert bucket(client).balance_s == -1.0, "what is borrowed costs nothing"
    assert gpus.spent() == [client]


def test_one_that_has_a_rest_does_not_borrow() -> None:
    gpus = LimitedGpus()
    client = gpus.running(50)
    assert gpus.spent(lend=True) == []
    gpus.now += 0.1
    assert gpus.spent(lend=True) == []
    assert bucket(client).balance_s == pytest.approx(-0.05)


def test_after_its_end_a_turn_borrows_no_more() -> None:
    gpus = LimitedGpus()
    client = gpus.running(50)
    gpus.quotas.lend(client)
    gpus.now += 10.0
    gpus.end(client)
    assert bucket(client).balance_s == 0.0
    assert gpus.gpu.limits.running == {}
    gpus.begin(client)
    gpus.now += 0.1
    gpus.due_s()
    assert bucket(client).balance_s == pytest.approx(-0.05)


def test_what_a_client_does_after_drop_lock_is_learnt_and_billed_in_part() -> None:
    gpus = LimitedGpus(drop_tail_billing_percent=50.0)
    client = gpus.running(50)
    gpus.drop(client)
    gpus.now += 0.4
    gpus.end(client)
    assert bucket(client).tail_s == pytest.approx(0.4)
    assert bucket(client).balance_s == pytest.approx(0.5 * 0.4 - 0.5 * 0.4)
    gpus.begin(client)
    gpus.end(client)
    assert bucket(client).tail_s == pytest.approx(0.4), "it released before"


# Refilled


def test_throttled_clients_come_back_in_the_order_of_their_refills() -> None:
    gpus = LimitedGpus()
    last, first, later = gpus.throttled(20, 1.0), gpus.throttled(20, 0.5), gpus.throttled(20, 3.0)
    due_s = [bucket(client).refilled_s() for client in (first, last)]
    assert gpus.gpu.limits.refill_s == due_s[0]
    assert gpus.quotas.due(gpus.gpu, gpus.now) == due_s[0]
    gpus.now = due_s[0] - 0.01
    assert gpus.quotas.find_refilled(gpus.gpu, gpus.now) == []
    gpus.now = due_s[1]
    assert gpus.quotas.find_refilled(gpus.gpu, gpus.now) == [first, last]
    gpus.transitions.dequeue(gpus.gpu, first, gpus.now)
    gpus.quotas.find_refill(gpus.gpu)
    assert gpus.gpu.limits.refill_s == bucket(last).refilled_s()
    for client in (last, later):
        gpus.transitions.dequeue(gpus.gpu, client, gpus.now)
    gpus.quotas.find_refill(gpus.gpu)
    assert gpus.quotas.due(gpus.gpu, gpus.now) == NEVER


def test_a_program_comes_back_after_half_of_the_longest_pause_at_the_latest() -> None:
    gpus = LimitedGpus()
    program, client = gpus.throttled(10, 5.0, program=True), gpus.throttled(10, 5.0)
    assert gpus.gpu.limits.refill_s == gpus.now + LONGEST_WAIT_S
    gpus.now += LONGEST_WAIT_S
    assert gpus.quotas.find_refilled(gpus.gpu, gpus.now) == [program]
    gpus.quotas.limit(program, 100, gpus.now)
    assert gpus.gpu.limits.refill_s == min(gpus.now, bucket(client).refilled_s())


def test_a_client_that_is_refilled_is_not_shown_as_throttled_while_it_waits_for_others() -> None:
    gpus = LimitedGpus()
    client, unlimited = gpus.throttled(50, 1.0), gpus.throttled(50, 1.0)
    gpus.quotas.limit(unlimited, 100, gpus.now)
    for one in (client, unlimited):
        gpus.transitions.requeue(gpus.gpu, one, gpus.now)
        assert one.standing is ClientStanding.WAITING
    assert not bucket(client).throttled


def test_a_throttled_client_is_refilled_sooner_when_the_others_leave() -> None:
    gpus = LimitedGpus()
    throttled, other = gpus.throttled(60, 3.0), gpus.running(90)
    before_s = gpus.gpu.limits.refill_s
    assert rates(throttled) == [0.4]
    gpus.end(other)
    assert gpus.gpu.limits.refill_s == pytest.approx(bucket(throttled).refilled_s())
    assert gpus.gpu.limits.refill_s < before_s
