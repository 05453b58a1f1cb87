"""The core limits of one GPU's clients: which clients have one, at what rate it fills, when it is spent or refilled.

Accounts only: evaluation.py decides what follows from a spent or refilled quota. The only code that changes `Quota` and
`CoreLimits`.
"""

from collections.abc import Iterator
from typing import Final

from gpucommons.config.scheduler import SchedulerSettings
from gpucommons.scheduler.policy.quota_bucket import EPSILON_S, QuotaBucket
from gpucommons.scheduler.policy.state import NEVER, Client, ClientStanding, GpuQueue

# The share of the longest pause for which a quota stops a program.
_LONGEST_WAIT_RATIO: Final = 0.5


class CoreQuotas:
    def __init__(self, settings: SchedulerSettings) -> None:
        self._settings = settings
        self._tail_billing_ratio = settings.drop_tail_billing_percent / 100
        self._sample_interval_s = settings.quota_sample_interval_ms / 1000
        self._longest_wait_s = _LONGEST_WAIT_RATIO * settings.max_pause_s

    def limit(self, client: Client, percent: int, now: float) -> None:
        """A changed limit keeps the balance: a change of quota does not cancel a debt."""
        gpu = client.gpu
        self.leave(client, now)
        client.quota.percent = percent
        if percent >= 100:
            client.quota.bucket = None
            gpu.limits.running.pop(client.id, None)
        elif client.quota.bucket is None:
            client.quota.bucket = QuotaBucket(percent, self._settings, now)
        else:
            client.quota.bucket.rate = percent / 100
        if client.standing is ClientStanding.RUNNING and client.quota.bucket is not None:
            # Before it joins, which may settle: what it ran without a limit costs nothing.
            gpu.limits.running[client.id] = client
            client.quota.settled_mark_s = gpu.turns.clock.billed_s
        if client.standing is not ClientStanding.IDLE:
            self._join(client, now)
        self.find_refill(gpu)

    def move(self, client: Client, target: GpuQueue, now: float) -> None:
        """Makes `target` the client's GPU; the balance is kept. Both turn clocks must have been advanced to `now`."""
        self.leave(client, now)
        running = client.gpu.limits.running.pop(client.id, None)
        client.gpu = target
        client.quota.settled_mark_s = target.turns.clock.billed_s
        if running is not None:
            target.limits.running[client.id] = client
        if client.standing is not ClientStanding.IDLE:
            self._join(client, now)

    def request(self, client: Client, now: float) -> bool:
        """A client with a quota requests a turn. Returns whether it must wait for a refill first."""
        bucket = client.quota.bucket
        assert bucket is not None
        bucket.settle_idle(now)
        self._join(client, now)
        bucket.throttled = bucket.is_over() or (bucket.throttled and bucket.balance_s < bucket.band_s - EPSILON_S)
        return bucket.throttled

    def begin_turn(self, client: Client, now: float) -> None:
        bucket = client.quota.bucket
        assert bucket is not None
        bucket.settle_waiting(now, 0.0)
        bucket.throttled = False
        client.quota.settled_mark_s = client.gpu.turns.clock.billed_s
        client.gpu.limits.running[client.id] = client

    def end_turn(self, client: Client, now: float) -> None:
        self.leave(client, now)
        del client.gpu.limits.running[client.id]
        bucket = client.quota.bucket
        assert bucket is not None
        bucket.borrowing = False
        if client.turn.drop_s is not None:
            bucket.learn_tail(now - client.turn.drop_s)

    def leave(self, client: Client, now: float) -> None:
        """The client withdraws its request or ends its turn, or its quota is about to change."""
        gpu = client.gpu
        if client.quota.bucket is not None and gpu.limits.clients.pop(client.id, None) is not None:
            self._settle_standing(client, now)
            gpu.limits.percent -= client.quota.percent
            client.quota.bucket.rate = client.quota.percent / 100
            self._rescale(gpu, now)

    def settle(self, client: Client, now: float) -> None:
        """Brings the bucket of a running client up to now. After DROP_LOCK only the tail's share is billed."""
        bucket = client.quota.bucket
        assert bucket is not None
        billed = client.gpu.turns.clock.billed_s
        spent = billed - client.quota.settled_mark_s
        if client.turn.drop_s is not None:
            spent *= self._tail_billing_ratio
        bucket.settle_running(now, spent)
        client.quota.settled_mark_s = billed

    def lend(self, client: Client) -> None:
        """No other client requests the GPU: the turn that has begun costs nothing."""
        bucket = client.quota.bucket
        assert bucket is not None
        bucket.borrowing = True

    def refill(self, client: Client) -> None:
        """The client waits for other clients, and no longer for its quota."""
        if client.quota.bucket is not None:
            client.quota.bucket.throttled = False

    def find_spent(self, gpu: GpuQueue, lend: bool, now: float) -> Iterator[Client]:
        """The running clients that have to be dropped, because their quota is spent. With `lend` they borrow instead;
        without it, borrowing ends."""
        for client in gpu.limits.running.values():
            if client.turn.drop_s is None:
                self.settle(client, now)
                bucket = client.quota.bucket
                assert bucket is not None
                bucket.borrowing = bucket.borrowing and lend
                left = bucket.spent_after_s(gpu.turns.clock.running)
                stays_s = max(client.turn.keep_until_s, gpu.phases.measured_until_s)
                if left is not None and left <= EPSILON_S and now >= stays_s:
                    bucket.borrowing = lend
                    if not lend:
                        bucket.throttled = True
                        yield client

    def find_refilled(self, gpu: GpuQueue, now: float) -> list[Client]:
        """The throttled clients whose quota is refilled, in the order of the refills."""
        back = [(self._refilled_s(client), client) for client in gpu.turns.throttled.values()]
        back.sort(key=lambda pair: pair[0])
        return [client for due, client in back if due <= now + EPSILON_S]

    def find_refill(self, gpu: GpuQueue) -> None:
        """Sets when the next throttled client is refilled."""
        gpu.limits.refill_s = min(map(self._refilled_s, gpu.turns.throttled.values()), default=NEVER)

    def _refilled_s(self, client: Client) -> float:
        """When the client may run again: at the latest before the pauser would resume it."""
        refilled_s = NEVER if client.quota.bucket is None else client.quota.bucket.refilled_s()
        return min(refilled_s, client.turn.wait_s + self._longest_wait_s) if client.is_program else refilled_s

    def due(self, gpu: GpuQueue, now: float) -> float:
        """When the next quota is spent or refilled. The buckets of running clients must have been settled at `now`."""
        due = gpu.limits.refill_s if gpu.turns.throttled else NEVER
        for client in gpu.limits.running.values():
            if client.turn.drop_s is None:
                bucket = client.quota.bucket
                assert bucket is not None
                left = bucket.spent_after_s(gpu.turns.clock.running)
                if left is not None:
                    # It may have begun its turn with a spent quota.
                    left = left if left > EPSILON_S else self._sample_interval_s
                    due = min(due, max(now + left, client.turn.keep_until_s, gpu.phases.measured_until_s))
        return due

    def _join(self, client: Client, now: float) -> None:
        gpu = client.gpu
        if client.quota.bucket is not None:
            gpu.limits.clients[client.id] = client
            gpu.limits.percent += client.quota.percent
            client.quota.bucket.rate = client.quota.percent / 100
            self._rescale(gpu, now)

    def _rescale(self, gpu: GpuQueue, now: float) -> None:
        """Limits above 100 in sum are scaled in proportion among the clients that run, wait or are throttled."""
        scale = 1.0 if gpu.limits.percent <= 100 else 100 / gpu.limits.percent
        if scale == gpu.limits.scale:
            return
        gpu.limits.scale = scale
        for client in gpu.limits.clients.values():
            self._settle_standing(client, now)
            assert client.quota.bucket is not None
            client.quota.bucket.rate = client.quota.percent / 100 * scale
        self.find_refill(gpu)

    def _settle_standing(self, client: Client, now: float) -> None:
        bucket = client.quota.bucket
        assert bucket is not None
        if client.standing is ClientStanding.RUNNING:
            self.settle(client, now)
        else:
            bucket.settle_waiting(now, 0.0)
