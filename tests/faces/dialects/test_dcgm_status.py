"""DCGM_EXP_GPU_HEALTH_STATUS and DCGM_EXP_P2P_STATUS, from readings and from the fake driver."""

from pathlib import Path

import pytest

from attribution.builders import gpu, reading
from fakes.nvml.build import build
from fakes.nvml.control import FakeNvml
from gpucommons.faces.dialects.dcgm import DCGM
from gpucommons.faces.exposition.exposition import Exposition
from gpucommons.model.gpu import ClockSample, Gpu, GpuReadings
from gpucommons.model.snapshot import Readings, Snapshot
from needs import needs_program
from parsing import parsed
from running import running_agent
from waiting import until

NOW = 1_700_000_000.0


def health(one: Gpu) -> dict[str, tuple[str, float]]:
    """By watch: the code and the result."""
    snapshot = Snapshot(1, 0.0, NOW, "host", readings=Readings(gpus=reading(one)))
    body, _ = Exposition(lambda: snapshot, [DCGM]).metrics("dcgm", False, False)
    found = {}
    for (name, pairs), value in parsed(body.decode()).items():
        if name == "DCGM_EXP_GPU_HEALTH_STATUS":
            labels = dict(pairs)
            found[labels["health_watch"]] = (labels["health_error_code"], value)
    return found


def with_readings(**values: int) -> Gpu:
    return gpu(0)._replace(readings=GpuReadings(**values), clock_samples=())


@pytest.mark.parametrize(
    ("readings", "verdict"),
    [
        ({"remapped_rows_failed": 0, "ecc_uncorrected_volatile": 0}, ("DCGM_FR_OK", 0)),
        ({"ecc_uncorrected_volatile": 3}, ("DCGM_FR_VOLATILE_DBE_DETECTED", 20)),
        ({"remapped_rows_failed": 1, "remapped_rows_pending": 1}, ("DCGM_FR_ROW_REMAP_FAILURE", 20)),
        ({"remapped_rows_failed": 0, "remapped_rows_pending": 1}, ("DCGM_FR_PENDING_ROW_REMAP", 10)),
        ({"retired_pages_pending": 1}, ("DCGM_FR_PENDING_PAGE_RETIREMENTS", 10)),
    ],
)
def test_the_gravest_problem_of_the_memory(readings: dict[str, int], verdict: tuple[str, float]) -> None:
    assert health(with_readings(**readings)) == {"MEM": verdict}


def test_heat_is_a_warning_for_a_minute() -> None:
    assert health(with_readings(throttle_mask=0x4)) == {"THERMAL": ("DCGM_FR_OK", 0)}
    assert health(with_readings(throttle_mask=0x44)) == {"THERMAL": ("DCGM_FR_CLOCK_THROTTLE_THERMAL", 10)}
    cool = with_readings(throttle_mask=0)
    recent = cool._replace(clock_samples=(ClockSample(NOW - 59, 0x20),))
    assert health(recent)["THERMAL"] == ("DCGM_FR_CLOCK_THROTTLE_THERMAL", 10)
    assert health(cool._replace(clock_samples=(ClockSample(NOW - 61, 0x20),)))["THERMAL"] == ("DCGM_FR_OK", 0)


def test_what_was_not_read_is_not_healthy() -> None:
    assert health(with_readings()) == {}


@pytest.mark.long
def test_links_between_gpus_are_those_of_the_driver(tmp_path: Path) -> None:
    needs_program("cc")
    (tmp_path / "library").mkdir()
    fake = FakeNvml(tmp_path / "driver", build(tmp_path / "library"))
    fake.say("gpus 3", "set nvmlDeviceGetP2PStatus 2 3")
    with running_agent(environment=fake.environment()) as agent:
        until(lambda: "DCGM_EXP_P2P_STATUS{" in agent.get("/metrics/dcgm")[1], "the GPUs are read")
        found = {
            (dict(labels)["gpu"], dict(labels)["peer_gpu"]): (dict(labels)["link_status"], value)
            for (name, labels), value in parsed(agent.get("/metrics/dcgm")[1]).items()
            if name == "DCGM_EXP_P2P_STATUS"
        }
    assert found == {
        **dict.fromkeys((("0", "1"), ("0", "2"), ("1", "0"), ("1", "2")), ("OK", 0)),
        **dict.fromkeys((("2", "0"), ("2", "1")), ("TopologyNotSupported", 3)),
    }


@pytest.mark.long
def test_an_older_driver_has_no_links(tmp_path: Path) -> None:
    needs_program("cc")
    (tmp_path / "library").mkdir()
    fake = FakeNvml(tmp_path / "driver", build(tmp_path / "library", ("nvmlDeviceGetP2PStatus",)))
    fake.say("gpus 2")
    with running_agent(environment=fake.environment()) as agent:
        until(lambda: "DCGM_FI_DEV_POWER_USAGE{" in agent.get("/metrics/dcgm")[1], "the GPUs are read")
        assert "DCGM_EXP_P2P_STATUS{" not in agent.get("/metrics/dcgm")[1]
