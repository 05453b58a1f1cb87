"""Owners' totals, quotas, the state of the ledger, and allocations in the gpucommons dialect."""

from faces.dialects.test_ds01 import value
from gpucommons.faces.dialects.gpucommons import GPUCOMMONS
from gpucommons.faces.exposition.exposition import Exposition
from gpucommons.model.accounts import Amounts, HoldingQuota, LedgerReading, LedgerState, OwnerKey
from gpucommons.model.events import EventsReading
from gpucommons.model.snapshot import Readings, Snapshot
from gpucommons.owners.holding_stage import AllocationStage
from holding.test_allocations import managed, process, readings
from parsing import Series, parsed

AMOUNTS = Amounts(10**10, 6 * 10**9, 4 * 10**9, 5 * 10**9, 2 * 10**9, 3 << 20, 7 * 10**6)
STATE = LedgerState(True, True, True, "", {"full": 2}, 1000.0, 10.0, 0.0, {"restart": 60 * 10**9}, 4096)


def series(given: Readings) -> Series:
    snapshot = Snapshot(0, 0.0, 0.0, "host", readings=AllocationStage()(given))
    exposition = Exposition(lambda: snapshot, [GPUCOMMONS])
    parsed(exposition.metrics(None, True, gzip=False)[0].decode(), openmetrics=True)
    return parsed(exposition.metrics(None, False, gzip=False)[0].decode())


def accounts(state: LedgerState = STATE, **quotas: float) -> LedgerReading:
    totals = {OwnerKey("user", "alice", ""): AMOUNTS, OwnerKey("pod", "train-0", "research"): Amounts()}
    return LedgerReading(state, totals, {user: HoldingQuota(limit) for user, limit in quotas.items()})


def test_counters_of_an_owner() -> None:
    found = series(Readings(ledger=accounts()))

    def of_alice(what: str) -> float | None:
        return value(found, f"gpucommons_owner_{what}_total", kind="user", owner="alice")

    assert [of_alice(f"{what}_gpu_seconds") for what in ("held", "active", "idle", "sm")] == [10, 6, 4, 2]
    assert of_alice("gpu_equivalent_seconds") == 5
    assert of_alice("memory_byte_seconds") == 3 << 30
    assert of_alice("energy_joules") == 7
    pod = {"kind": "pod", "owner": "train-0", "namespace": "research"}
    assert value(found, "gpucommons_owner_held_gpu_seconds_total", **pod) == 0


def test_totals_are_absent_until_the_ledger_has_been_read() -> None:
    found = series(Readings(ledger=LedgerReading(LedgerState(begun=True), None)))
    assert not any(name.startswith("gpucommons_owner_") for name, _ in found)
    assert value(found, "gpucommons_ledger_writing") == 0
    quiet = series(Readings(ledger=LedgerReading(LedgerState(), None)))
    assert value(quiet, "gpucommons_ledger_writing") is None, "a node without a GPU has no ledger"


def test_quotas() -> None:
    holders = readings(managed("one", "alice", "0"), ledger=accounts(alice=0.5, bob=2))
    found = series(holders)
    assert value(found, "gpucommons_quota_gpu_equivalents", user="alice") == 0.5
    assert value(found, "gpucommons_quota_used_gpu_equivalents", user="alice") == 1
    assert value(found, "gpucommons_quota_exceeded", user="alice") == 1
    assert value(found, "gpucommons_quota_used_gpu_equivalents", user="bob") == 0
    assert value(found, "gpucommons_quota_exceeded", user="bob") == 0


def test_state_of_the_ledger() -> None:
    found = series(Readings(ledger=accounts()))
    assert value(found, "gpucommons_ledger_writing") == 1
    assert value(found, "gpucommons_ledger_durable") == 1
    assert value(found, "gpucommons_ledger_last_flush_timestamp_seconds") == 1000
    assert value(found, "gpucommons_ledger_failures_total", reason="full") == 2
    assert value(found, "gpucommons_ledger_gap_seconds_total", reason="restart") == 60
    assert value(found, "gpucommons_ledger_file_bytes") == 4096
    assert value(found, "gpucommons_event_log_writing") == 1


def test_share_and_activity_of_allocations() -> None:
    busy = managed("busy", "bob", "0")
    kept = managed("kept", "alice", "0", running=False)
    found = series(readings(kept, busy, processes=[process(busy)], events=EventsReading({}, 7, {"not_json": 1}, 5, 2)))
    labels = {"slot": "0", "uuid": "GPU-0", "kind": "container", "interface": "orchestration", "managed": "true"}
    bob = {**labels, "workload": "busy", "user": "bob", "owner": "bob"}
    alice = {**labels, "workload": "kept", "user": "alice", "owner": "alice"}
    states = [
        [value(found, f"gpucommons_allocation_{what}", **who) for what in ("share_ratio", "running", "active")]
        for who in (bob, alice)
    ]
    assert states == [[1, 1, 1], [0, 0, 0]]
    assert value(found, "gpucommons_allocations_complete") == 1
    assert value(found, "gpucommons_followed_event_bad_lines_total", reason="not_json") == 1
    assert value(found, "gpucommons_followed_event_rotations_lost_total") == 2
