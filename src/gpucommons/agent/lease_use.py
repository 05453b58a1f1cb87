"""What is billed to each lease while it lasts, by the same integration as the ledger's. Pure."""

from collections.abc import Mapping

from gpucommons.holding.claims import lease_of_job
from gpucommons.leases.service.facts import LeaseUse
from gpucommons.ledger.batch import NS
from gpucommons.ledger.integrate import Integrator
from gpucommons.ledger.usage import usage_of
from gpucommons.model.accounts import Amounts
from gpucommons.model.snapshot import Snapshot
from gpucommons.model.usage import UsageSample

# After its last snapshot, for a client that asks for its report late.
_KEPT_SNAPSHOTS = 10


class LeaseMeter:
    """`step` takes the snapshots with leases and those that follow, while `is_active`.

    The figures of a lease are final with the first snapshot without it.
    """

    def __init__(self, longest_gap_s: float) -> None:
        self._integrator = Integrator(longest_gap_s)
        self._amounts: dict[str, Amounts] = {}
        self._peaks: dict[str, int | None] = {}
        self._unseen: dict[str, int] = {}

    def step(self, snapshot: Snapshot) -> None:
        sample = usage_of(snapshot)
        self._integrator.step(sample)
        for (_, _, account), amounts in self._integrator.take().usage.items():
            id = lease_of_job(account.job)
            if id is not None:
                self._amounts[id] = self._amounts.get(id, Amounts()).plus(amounts)
        self._see(sample)

    @property
    def is_active(self) -> bool:
        return bool(self._unseen)

    def used(self) -> Mapping[str, LeaseUse]:
        return {id: _use(amounts, self._peaks.get(id)) for id, amounts in self._amounts.items()}

    def _see(self, sample: UsageSample) -> None:
        now: dict[str, int | None] = {}
        for slot in sample.slots:
            for holding in slot.holdings:
                id = lease_of_job(holding.account.job)
                if id is not None:
                    now[id] = _plus(now.get(id), holding.memory_bytes)
        for id, memory_bytes in now.items():
            self._unseen[id] = 0
            self._peaks[id] = _highest(self._peaks.get(id), memory_bytes)
        for id in [id for id in self._unseen if id not in now]:
            self._unseen[id] += 1
            if self._unseen[id] > _KEPT_SNAPSHOTS:
                del self._unseen[id], self._peaks[id]
                self._amounts.pop(id, None)


def _use(amounts: Amounts, peak_bytes: int | None) -> LeaseUse:
    judged_ns = amounts.active_ns + amounts.idle_ns
    return LeaseUse(
        amounts.held_ns / NS,
        amounts.active_ns / NS,
        judged_ns / NS,
        amounts.sm_ns / NS,
        amounts.energy_uj / 1e6,
        peak_bytes,
    )


def _plus(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else one + other


def _highest(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else max(one, other)
