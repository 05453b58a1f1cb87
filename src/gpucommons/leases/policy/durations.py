"""How long leases last, by the leases that ended before. Pure."""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from gpucommons.model.leases import Lease, LeaseRequest

# Where no lease has ended yet.
_UNKNOWN_S: Final = 3600.0
_KEPT: Final = 200
_OF_USER: Final = 20
# The duration that three of four leases do not exceed: a later request that passes should be done in time.
_QUANTILE: Final = 0.75


class LeaseDurations:
    """The last leases that ended: user and seconds."""

    def __init__(self, ended: Iterable[tuple[str, float]] = ()) -> None:
        self._ended: deque[tuple[str, float]] = deque(ended, maxlen=_KEPT)

    def add(self, user: str, seconds: float) -> None:
        self._ended.append((user, seconds))

    def all(self) -> list[tuple[str, float]]:
        return list(self._ended)

    def expected_s(self, request: LeaseRequest) -> float:
        """Its time limit, or what the leases of its user lasted, or those of all users."""
        return _UNKNOWN_S if request.limit_s is None and not self._ended else self._expected(request, 0.0)

    def left_s(self, lease: Lease, now_s: float) -> float:
        """A lease that has lasted longer than all before it is expected to last as long again."""
        age_s = _age_s(lease, now_s)
        return max(0.0, self._expected(lease.request, age_s) - age_s)

    def is_left_guess(self, lease: Lease, now_s: float) -> bool:
        return self.is_guess(lease.request, _age_s(lease, now_s))

    def is_guess(self, request: LeaseRequest, age_s: float = 0.0) -> bool:
        """Whether nothing shows how long it lasts: it has no limit, and no lease has lasted for longer than it."""
        return request.limit_s is None and all(seconds <= age_s for _, seconds in self._ended)

    def _expected(self, request: LeaseRequest, age_s: float) -> float:
        if request.limit_s is not None:
            return request.limit_s
        of_user = [seconds for user, seconds in self._ended if user == request.user][-_OF_USER:]
        for known in (of_user, [seconds for _, seconds in self._ended]):
            longer = [seconds for seconds in known if seconds > age_s]
            if longer:
                return _quantile(longer)
        return max(2 * age_s, _UNKNOWN_S)


def _age_s(lease: Lease, now_s: float) -> float:
    return max(0.0, now_s - lease.since_s)


def _quantile(values: Sequence[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(_QUANTILE * len(values)))]
