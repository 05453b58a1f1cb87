"""XPUShare's names: every nvshare series with the prefix changed and the value the same, and three extras."""

from pathlib import Path

import pytest

from gpucommons.faces.dialects.nvshare import NVSHARE
from gpucommons.faces.dialects.xpushare import XPUSHARE
from gpucommons.faces.exposition.exposition import Exposition
from gpucommons.model.snapshot import Readings, Snapshot
from gpucommons.scheduler.policy.state import GIB
from parsing import Series, parsed
from running import running_agent
from scheduler.served import Scripted, serving
from simulation.played_lab import PlayedLab

EXTRAS = {
    ("xpushare_gpu_sampler_up", ()),
    ("xpushare_gpu_sampler_backend_info", (("backend", "nvml"),)),
}


def both(of: Snapshot) -> tuple[Series, Series]:
    exposition = Exposition(lambda: of, [NVSHARE, XPUSHARE])
    nvshare, xpushare = (
        parsed(exposition.metrics(name, openmetrics=False, gzip=False)[0].decode()) for name in ("nvshare", "xpushare")
    )
    assert exposition.failures == {"nvshare": 0, "xpushare": 0}
    return nvshare, xpushare


def renamed(nvshare: Series) -> Series:
    return {(f"xpushare_{name.removeprefix('nvshare_')}", labels): value for (name, labels), value in nvshare.items()}


def test_every_series_of_the_lab_has_its_twin_with_the_same_value() -> None:
    nvshare, xpushare = both(PlayedLab().snapshot(100.0))
    assert len(nvshare) > 100, "GPUs, clients and the scheduler are there"
    assert xpushare == renamed(nvshare) | dict.fromkeys(EXTRAS, 1)
    assert xpushare[("xpushare_nvml_up", ())] == 1


def test_every_series_of_a_real_scheduler_has_its_twin(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        client = Scripted(served.path).register("pod", "ns", core_limit_percent=50).report(4 * GIB).ask().granted()
        reading = served.reading()
    nvshare, xpushare = both(Snapshot(1, 0.0, 0.0, "host", readings=Readings(sharing=reading)))
    labels = (("client_id", client.id), ("gpu_uuid", "default"), ("namespace", "ns"), ("pod", "pod"))
    assert xpushare[("xpushare_client_managed_allocated_bytes", labels)] == 4 * GIB
    assert xpushare == renamed(nvshare) | {("xpushare_gpu_sampler_up", ()): 0}


def test_without_nvml_the_sampler_is_down_and_has_no_backend() -> None:
    _, xpushare = both(Snapshot(1, 0.0, 0.0, "host"))
    assert xpushare == {("xpushare_nvml_up", ()): 0, ("xpushare_gpu_sampler_up", ()): 0}


def test_the_catalogue_is_nvshares_and_the_extras() -> None:
    names = {metric.name.removeprefix("xpushare_") for metric in XPUSHARE.catalogue}
    of_nvshare = {metric.name.removeprefix("nvshare_") for metric in NVSHARE.catalogue}
    assert names == of_nvshare | {"gpu_sampler_up", "gpu_sampler_backend_info"}
    types = {metric.name.removeprefix("xpushare_"): metric.type for metric in XPUSHARE.catalogue}
    assert {metric.name.removeprefix("nvshare_"): metric.type for metric in NVSHARE.catalogue}.items() <= types.items()


@pytest.mark.long
def test_an_agent_serves_it_by_name_and_on_its_listener_but_not_on_the_main_page() -> None:
    environment = {"XPUSHARE_METRICS_ENABLE": "1", "XPUSHARE_METRICS_ADDR": "127.0.0.1:0"}
    with running_agent("--simulate", "lab", environment=environment) as agent:
        assert 'xpushare_gpu_sampler_backend_info{backend="nvml"} 1' in agent.get("/metrics/xpushare")[1]
        main = agent.get("/metrics")[1]
        assert "nvshare_nvml_up 1" in main
        assert "xpushare_" not in main
        assert any("(xpushare dialect alone)" in line for line in agent.lines)
