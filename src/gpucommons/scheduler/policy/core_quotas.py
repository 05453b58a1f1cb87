"""The core quotas of one GPU's clients: which clients have one, at what rate it fills, when it is spent or refilled.

Accounts only: evaluation.py decides what follows from a spent or refilled quota.
"""

from collections.abc import Iterator
from typing import Final

from gpucommons.config.scheduler import SchedulerSettings
from gpucommons.scheduler.policy.billing import EPSILON_S, QuotaBucket
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
        client.core_limit_percent = percent
        if percent >= 100:
            client.bucket = None
            gpu.limited_running.pop(client.id, None)
        elif client.bucket is None:
            client.bucket = QuotaBucket(percent, self._settings, now)
        else:
            client.bucket.rate = percent / 100
        if client.standing is not ClientStanding.IDLE:
            self._join(client, now)
        if client.standing is ClientStanding.RUNNING and client.bucket is not None:
            gpu.limited_running[client.id] = client
            client.settled_mark_s = gpu.clock.billed_s
        self.find_refill(gpu)

    def move(self, client: Client, target: GpuQueue, now: float) -> None:
        """Makes `target` the client's GPU; the balance is kept. Both turn clocks must have been advanced to `now`."""
        self.leave(client, now)
        running = client.gpu.limited_running.pop(client.id, None)
        client.gpu = target
        client.settled_mark_s = target.clock.billed_s
        if running is not None:
            target.limited_running[client.id] = client
        if client.standing is not ClientStanding.IDLE:
            self._join(client, now)

    def request(self, client: Client, now: float) -> bool:
        """A client with a quota requests a turn. Returns whether it must wait for a refill first."""
        bucket = client.bucket
        assert bucket is not None
        bucket.settle_idle(now)
        self._join(client, now)
        bucket.throttled = bucket.is_over() or (bucket.throttled and bucket.balance_s < bucket.band_s - EPSILON_S)
        return bucket.throttled

    def begin_turn(self, client: Client, now: float) -> None:
        bucket = client.bucket
        assert bucket is not None
        bucket.settle_waiting(now, 0.0)
        bucket.throttled = False
        client.settled_mark_s = client.gpu.clock.billed_s
        client.gpu.limited_running[client.id] = client

    def end_turn(self, client: Client, now: float) -> None:
        self.leave(client, now)
        del client.gpu.limited_running[client.id]
        bucket = client.bucket
        assert bucket is not None
        bucket.borrowing = False
        if client.drop_s is not None:
            bucket.learn_tail(now - client.drop_s)

    def leave(self, client: Client, now: float) -> None:
        """The client withdraws its request or ends its turn, or its quota is about to change."""
        gpu = client.gpu
        if client.bucket is not None and gpu.limited.pop(client.id, None) is not None:
            self._settle_standing(client, now)
            gpu.limited_percent -= client.core_limit_percent
            client.bucket.rate = client.core_limit_percent / 100
            self._rescale(gpu, now)

    def settle(self, client: Client, now: float) -> None:
        """Brings the bucket of a running client up to now. After DROP_LOCK only the tail's share is billed."""
        bucket = client.bucket
        assert bucket is not None
        billed = client.gpu.clock.billed_s
        spent = billed - client.settled_mark_s
        if client.drop_s is not None:
            spent *= self._tail_billing_ratio
        bucket.settle_running(now, spent)
        client.settled_mark_s = billed

    def spent(self, gpu: GpuQueue, lend: bool, now: float) -> Iterator[tuple[Client, QuotaBucket]]:
        """The running clients whose quota is spent and that can be dropped. Borrowing ends unless `lend` is still
        true."""
        for client in gpu.limited_running.values():
            if client.drop_s is None:
                self.settle(client, now)
                bucket = client.bucket
                assert bucket is not None
                bucket.borrowing = bucket.borrowing and lend
                left = bucket.spent_after_s(gpu.clock.running)
                if left is not None and left <= EPSILON_S and now >= max(client.keep_until_s, gpu.measured_until_s):
                    yield client, bucket

    def refilled(self, gpu: GpuQueue, now: float) -> list[Client]:
        """The throttled clients whose quota is refilled, in the order of the refills."""
        back = [(self._refilled_s(client), client) for client in gpu.throttled.values()]
        back.sort(key=lambda pair: pair[0])
        return [client for due, client in back if due <= now + EPSILON_S]

    def find_refill(self, gpu: GpuQueue) -> None:
        """Sets when the next throttled client is refilled."""
        gpu.refill_s = min(map(self._refilled_s, gpu.throttled.values()), default=NEVER)

    def _refilled_s(self, client: Client) -> float:
        """When the client may run again: at the latest before the pauser would resume it."""
        refilled_s = NEVER if client.bucket is None else client.bucket.refilled_s()
        return min(refilled_s, client.wait_s + self._longest_wait_s) if client.is_program else refilled_s

    def due(self, gpu: GpuQueue, now: float) -> float:
        """When the next quota is spent or refilled. The buckets of running clients must have been settled at `now`."""
        due = gpu.refill_s if gpu.throttled else NEVER
        for client in gpu.limited_running.values():
            if client.drop_s is None and client.bucket is not None:
                left = client.bucket.spent_after_s(gpu.clock.running)
                if left is not None:
                    # It may have begun its turn with a spent quota.
                    left = left if left > EPSILON_S else self._sample_interval_s
                    due = min(due, max(now + left, client.keep_until_s, gpu.measured_until_s))
        return due

    def _join(self, client: Client, now: float) -> None:
        gpu = client.gpu
        if client.bucket is not None:
            gpu.limited[client.id] = client
            gpu.limited_percent += client.core_limit_percent
            client.bucket.rate = client.core_limit_percent / 100 * gpu.limited_scale
            self._rescale(gpu, now)

    def _rescale(self, gpu: GpuQueue, now: float) -> None:
        """Limits above 100 in sum are scaled in proportion among the clients that run, wait or are throttled."""
        scale = 1.0 if gpu.limited_percent <= 100 else 100 / gpu.limited_percent
        if scale == gpu.limited_scale:
            return
        gpu.limited_scale = scale
        for client in gpu.limited.values():
            self._settle_standing(client, now)
            assert client.bucket is not None
            client.bucket.rate = client.core_limit_percent / 100 * scale
        self.find_refill(gpu)

    def _settle_standing(self, client: Client, now: float) -> None:
        if client.standing is ClientStanding.RUNNING:
            self.settle(client, now)
        elif client.bucket is not None:
            client.bucket.settle_waiting(now, 0.0)
