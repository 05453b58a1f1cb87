"""The accounts as parts of the agent, over the lab: held, billed, recorded, published; one sample writes no file."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from faces.dialects.test_ds01 import family, value
from gpucommons.agent.accounts import Accounts
from gpucommons.agent.sampler import Sampler
from gpucommons.agent.sources import agent_sources
from gpucommons.config.accounts import LedgerSettings, QuotaSettings
from gpucommons.config.settings import Settings
from gpucommons.faces.dialects.all import DIALECTS
from gpucommons.faces.exposition.exposition import Exposition
from gpucommons.ledger.events import read_events
from gpucommons.ledger.query import read_period
from gpucommons.model.snapshot import Snapshot
from gpucommons.simulation.scenarios import SCENARIOS
from parsing import parsed

STEP_S = 1.0


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    return tmp_path


async def played(name: str, seconds: int, settings: Settings, start: bool = True, begin_s: float = 1000.0) -> Snapshot:
    """The scenario by a virtual clock: a minute of the lab takes less than a second."""
    now_s = begin_s
    accounts = Accounts(settings, name)
    sources, derive = agent_sources(settings, SCENARIOS[name], accounts.sources(), monotonic=lambda: now_s)
    sampler = Sampler(
        sources,
        interval_s=STEP_S,
        hostname="lab",
        scenario="lab",
        derive=derive,
        monotonic=lambda: now_s,
        wall=lambda: 1_800_000_000 + now_s,
    )
    sampler.subscribe(accounts.observe)
    if start:
        await accounts.start()
    for _ in range(seconds):
        snapshot = await sampler.tick()
        now_s += STEP_S
        # The writer and the event log have their own threads: let them keep up with the virtual clock.
        await asyncio.sleep(0.005)
    await accounts.stop()
    sampler.close()
    return snapshot


def test_the_lab_is_billed_and_published_in_every_dialect(state: Path) -> None:
    settings = replace(Settings(), quotas={"alice": QuotaSettings(2.0), "farah": QuotaSettings(1.0)})
    snapshot = asyncio.run(played("lab", 40, settings))
    reading = snapshot.readings.allocations
    assert reading is not None
    states = {(each.account.user, each.slot.name): each.state.value for each in reading.allocations if each.share}
    assert set(states.values()) == {"active", "running", "held"}
    assert states["alice", "0"] == "active"
    interfaces = {each.interface for each in reading.allocations}
    assert interfaces >= {"orchestration", "atomic", "api", "other", "docker"}
    assert [each.user for each in reading.unmanaged] == ["farah"]
    people = {each.account.user for each in reading.allocations}
    assert people >= {"alice", "bob", "chen", "dana", "emeka", "farah"}
    assert {each.account.group for each in reading.allocations} >= {"vision", "students"}
    body, _ = Exposition(lambda: snapshot, DIALECTS).metrics(None, False, gzip=False)
    series = parsed(body.decode())
    assert value(series, "ds01_user_gpu_equivalents", user="alice") == 3
    assert value(series, "ds01_user_gpu_equivalents", user="farah") == 2 / 7
    assert value(series, "gpucommons_quota_exceeded", user="alice") == 1
    assert value(series, "gpucommons_quota_exceeded", user="farah") == 0
    assert value(series, "ds01_unmanaged_gpu_count") == 1
    missing = {metric.name for metric in DIALECTS[3].catalogue} - {name for name, _ in series}
    assert missing == {"ds01_exporter_info"}, "the lab shows every ds01 metric; no agent runs here to give its version"
    billed = family(series, "gpucommons_owner_held_gpu_seconds_total")
    assert (("kind", "label"), ("owner", "alice")) in billed
    period = read_period(state / "ledger-lab.sqlite", 1_800_000_000, 1_800_010_000)
    by_gpu = {slot.uuid: time for slot, time in period.slot_time.items()}
    assert all(sum(time) == 39 * 10**9 for time in by_gpu.values()), "held and free time sum to the time observed"
    types = [event.type for event in read_events(state / "events-lab.jsonl")]
    assert types.count("quota.exceeded") == 1
    held = sum(not each.is_access_only for each in reading.allocations)
    assert types.count("allocation.seen") == held + 1, "a container that may use every GPU is one event"


def test_faults_are_in_the_event_log(state: Path) -> None:
    asyncio.run(played("faults", 25, Settings()))
    types = [event.type for event in read_events(state / "events-faults.jsonl")]
    assert types.count("gpu.lost") == 1
    assert "gpu.xid" in types


def test_one_sample_writes_no_file(state: Path) -> None:
    snapshot = asyncio.run(played("lab", 2, Settings(), start=False))
    assert snapshot.readings.allocations is not None
    assert snapshot.readings.ledger is not None
    assert not snapshot.readings.ledger.ledger.begun
    assert list(state.iterdir()) == []


def test_without_a_ledger_allocations_are_still_derived(state: Path) -> None:
    settings = replace(Settings(), ledger=LedgerSettings(enabled=False))
    snapshot = asyncio.run(played("lab", 12, settings))
    assert snapshot.readings.allocations is not None
    assert snapshot.readings.ledger is None
    assert list(state.iterdir()) == []
