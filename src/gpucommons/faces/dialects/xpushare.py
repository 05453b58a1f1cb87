"""xpushare_*: the nvshare families under the prefix of XPUShare, the current name of nvshare v2.

Labels and values are those of dialects/nvshare. XPUShare adds two families about the library that reads the GPUs, here
NVML. The main /metrics does not include this dialect: it has every value under its nvshare name.
"""

from collections.abc import Iterator
from dataclasses import replace

from gpucommons.faces.dialects.dialect import Dialect
from gpucommons.faces.dialects.nvshare import NVSHARE
from gpucommons.faces.exposition.families import Family, Metric, gauge
from gpucommons.model.snapshot import Snapshot

SAMPLER_UP = gauge("xpushare_gpu_sampler_up", "State of the library that reads the GPUs: 1 if it answers, else 0.")
SAMPLER_BACKEND = gauge("xpushare_gpu_sampler_backend_info", "Library that reads the GPUs; always 1.", "backend")


def _rename(metric: Metric) -> Metric:
    return replace(metric, name=f"xpushare_{metric.name.removeprefix('nvshare_')}")


_RENAMED = {metric: _rename(metric) for metric in NVSHARE.catalogue}


def collect(snapshot: Snapshot) -> Iterator[Family]:
    up = snapshot.readings.gpus is not None
    yield SAMPLER_UP.value(int(up))
    yield SAMPLER_BACKEND.value(1 if up else None, "nvml")
    for family in NVSHARE.collect(snapshot):
        yield replace(family, metric=_RENAMED[family.metric])


XPUSHARE = Dialect(
    name="xpushare",
    port=NVSHARE.port,
    summary="the nvshare families in the names of XPUShare, the current name of nvshare v2",
    catalogue=(SAMPLER_UP, SAMPLER_BACKEND, *_RENAMED.values()),
    collect=collect,
    on_main=False,
)
