"""Owners with shards of a GPU: each has its part of the time among those that compete, and all of it alone."""

from hypothesis import given
from hypothesis import strategies as st

from gpucommons.scheduler.corun.accounts import OwnerAccounts
from gpucommons.scheduler.corun.coruns import Coruns

_QUANTUM_S = 0.25


def served(weights: dict[str, float], owners: list[str], seconds: float = 200.0) -> dict[str, float]:
    """The time of each owner, where the one that is next always has a quantum."""
    accounts: OwnerAccounts[str] = OwnerAccounts()
    accounts.weights = weights
    accounts.enter({owner: owner for owner in owners}, 0.0)
    had = dict.fromkeys(owners, 0.0)
    while sum(had.values()) < seconds:
        owner = accounts.next_owner(owners, _QUANTUM_S / 2)
        accounts.charge(owner, _QUANTUM_S, [owner])
        had[owner] += _QUANTUM_S
    return had


@given(st.lists(st.sampled_from([0.25, 0.5, 0.75, 1.0]), min_size=2, max_size=4))
def test_each_owner_has_its_part(given: list[float]) -> None:
    weights = {f"owner{number}": weight for number, weight in enumerate(given)}
    had = served(weights, list(weights))
    for owner, weight in weights.items():
        assert abs(had[owner] / 200.0 - weight / sum(given)) < 0.05


def test_owners_without_shards_share_evenly() -> None:
    had = served({}, ["a", "b"])
    assert abs(had["a"] - had["b"]) <= 2 * _QUANTUM_S


def phases(weights: dict[str, float], seconds: float = 60.0) -> dict[str, float]:
    """The time in turns of two heavy clients, whose use is not measured."""
    coruns: Coruns[str] = Coruns()
    coruns.metered = False
    coruns.weights = weights
    now_s, had = 0.0, {"a": 0.0, "b": 0.0}
    while now_s < seconds:
        phase = coruns.phase({"a": "a", "b": "b"}, now_s)
        length_s = min(phase.length_s, 1.0)
        for client in phase.unit:
            had[client] += length_s
        now_s += length_s
        coruns.record_phase_end(phase, length_s)
        coruns.record_use(
            {client: 1.0 / len(phase.clients) for client in phase.clients}, {"a": "a", "b": "b"}, 1.0, now_s
        )
    return had


def test_jobs_with_different_shards_take_turns_by_their_shards() -> None:
    had = phases({"a": 0.75, "b": 0.25})
    assert sum(had.values()) > 40
    assert 2.5 < had["a"] / had["b"] < 3.5


def test_jobs_with_equal_shards_run_together() -> None:
    assert sum(phases({"a": 0.5, "b": 0.5}).values()) == 0
