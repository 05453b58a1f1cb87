"""DCGM_EXP_*: counts in the window by XID or clock event, and one series with 0 for an empty window."""

import pytest

from attribution.builders import gpu, reading
from gpucommons.faces.dialects.dcgm import dcgm_dialect
from gpucommons.faces.dialects.dcgm.labels import DcgmOptions
from gpucommons.faces.exposition.exposition import Exposition
from gpucommons.model.gpu import ClockSample, Gpu, XidRecord
from gpucommons.model.snapshot import Readings, Snapshot
from parsing import parsed

NOW = 1_700_000_000.0


def counted(name: str, label: str, one: Gpu, **options: int) -> dict[tuple[str | None, str], float]:
    """By what was counted and the window's length."""
    snapshot = Snapshot(1, 0.0, NOW, "host", readings=Readings(gpus=reading(one)))
    dialect = dcgm_dialect(DcgmOptions(**options))  # type: ignore[arg-type]
    body, _ = Exposition(lambda: snapshot, [dialect]).metrics("dcgm", False, False)
    found = {}
    for (family, pairs), value in parsed(body.decode()).items():
        labels = dict(pairs)
        if family == f"DCGM_EXP_{name}":
            assert labels["UUID"] == "GPU-0"
            found[labels.get(label), labels["window_size_in_ms"]] = value
    return found


def xids(one: Gpu, **options: int) -> dict[tuple[str | None, str], float]:
    return counted("XID_ERRORS_COUNT", "xid", one, **options)


def clock_events(one: Gpu, **options: int) -> dict[tuple[str | None, str], float]:
    return counted("CLOCK_EVENTS_COUNT", "clock_event", one, **options)


SECOND = int(NOW)
TROUBLED = gpu(0)._replace(
    xid=XidRecord(
        True,
        {31: 9, 79: 1},
        79,
        NOW,
        recent={(SECOND - 900, 31): 4, (SECOND - 299, 31): 3, (SECOND, 31): 2, (SECOND, 79): 1},
    ),
)


def test_xids_are_counted_in_a_window_of_five_minutes() -> None:
    assert xids(TROUBLED) == {("31", "300000"): 5, ("79", "300000"): 1}
    assert xids(TROUBLED, xid_window_ms=3_600_000) == {("31", "3600000"): 9, ("79", "3600000"): 1}
    assert xids(TROUBLED, xid_window_ms=1000) == {("31", "1000"): 2, ("79", "1000"): 1}


def test_an_empty_window_is_0_and_an_unwatched_gpu_is_absent() -> None:
    assert xids(gpu(0)._replace(xid=XidRecord(True, {31: 1}, 31, NOW - 9000, recent={(SECOND - 900, 31): 1}))) == {
        (None, "300000"): 0
    }
    assert xids(gpu(0)._replace(xid=XidRecord(False))) == {}


def test_a_lost_gpu_keeps_its_xids_but_has_no_clock_events() -> None:
    lost = TROUBLED._replace(up=False, clock_samples=(ClockSample(NOW, 4),))
    assert xids(lost) == {("31", "300000"): 5, ("79", "300000"): 1}
    assert clock_events(lost) == {}


def test_clock_events_are_counted_by_sample() -> None:
    samples = ((NOW - 301, 0x4), (NOW - 270, 0x4 | 0x40), (NOW - 30, 0x1), (NOW, 0x4 | 0x200))
    one = gpu(0)._replace(clock_samples=tuple(ClockSample(*sample) for sample in samples))
    five = "300000"
    assert clock_events(one) == {("power_cap", five): 2, ("hw_thermal", five): 1, ("gpu_idle", five): 1}
    assert clock_events(one, clock_events_window_ms=600_000)[("power_cap", "600000")] == 3


NAMES = "gpu_idle clocks_setting power_cap hw_slowdown sync_boost sw_thermal hw_thermal hw_power_brake display_clocks"


@pytest.mark.parametrize(("bit", "name"), list(enumerate(NAMES.split())))
def test_clock_events_have_dcgm_exporters_names(bit: int, name: str) -> None:
    one = gpu(0)._replace(clock_samples=(ClockSample(NOW, 1 << bit),))
    assert clock_events(one) == {(name, "300000"): 1}


def test_full_clocks_are_0_and_a_window_without_samples_is_absent() -> None:
    assert clock_events(gpu(0)._replace(clock_samples=(ClockSample(NOW, 0),))) == {(None, "300000"): 0}
    assert clock_events(gpu(0)._replace(clock_samples=(ClockSample(NOW - 301, 4),))) == {}


def test_times_in_the_future_are_outside_the_window() -> None:
    later = gpu(0)._replace(
        clock_samples=(ClockSample(NOW + 60, 4),), xid=XidRecord(True, recent={(SECOND + 60, 31): 1})
    )
    assert clock_events(later) == {}
    assert xids(later) == {(None, "300000"): 0}
