"""All dialects, in the order in which /metrics serves them, and the page that documents them."""

from collections.abc import Iterable, Iterator

from gpucommons.faces.dialects.dcgm import dcgm_dialect
from gpucommons.faces.dialects.dcgm.collectors import Shape
from gpucommons.faces.dialects.dcgm.labels import DcgmOptions
from gpucommons.faces.dialects.dialect import Dialect
from gpucommons.faces.dialects.ds01 import DS01
from gpucommons.faces.dialects.gpucommons import GPUCOMMONS
from gpucommons.faces.dialects.node import NODE
from gpucommons.faces.dialects.nodeexporter import NODEEXPORTER
from gpucommons.faces.dialects.nvidiasmi import NVIDIASMI
from gpucommons.faces.dialects.nvshare import NVSHARE
from gpucommons.faces.dialects.vgpu import vgpu_dialect
from gpucommons.faces.dialects.xpushare import XPUSHARE
from gpucommons.faces.exposition.families import Metric


def dialects(
    *,
    dcgm: DcgmOptions | None = None,
    dcgm_shape: Shape | None = None,
    pod_namespace: bool = True,
    like_vgpu_monitor: bool = False,
) -> tuple[Dialect, ...]:
    """`dcgm` sets the labels and windows of dcgm, `dcgm_shape` which fields it has; `pod_namespace` adds the namespace
    label to vgpu, and `like_vgpu_monitor` gives it the labels and values of k8s-vgpu-monitor's program."""
    return (
        GPUCOMMONS,
        NODE,
        NVSHARE,
        DS01,
        dcgm_dialect(dcgm, dcgm_shape),
        vgpu_dialect(pod_namespace, like_vgpu_monitor),
        XPUSHARE,
        NODEEXPORTER,
        NVIDIASMI,
    )


DIALECTS: tuple[Dialect, ...] = dialects()


# docs/metrics.md, generated from the catalogues: every metric with its type, labels and help. Pure.


def metrics_page(dialects: Iterable[Dialect]) -> str:
    return "\n".join(_lines(tuple(dialects))) + "\n"


def _lines(dialects: tuple[Dialect, ...]) -> Iterator[str]:
    yield "# Metrics"
    yield ""
    yield "Generated from the catalogues of the dialects by `make docs`. The main listener serves all dialects at"
    yield "`/metrics`, except where a section says otherwise, and each dialect at `/metrics/NAME`. A drop-in listener"
    yield "serves one dialect at `/metrics`, on the port that its users scrape."
    yield "A label in brackets is omitted from a series that has no value for it."
    for dialect in dialects:
        yield ""
        yield f"## {dialect.name} (port {dialect.port})"
        yield ""
        yield f"{dialect.summary[0].upper()}{dialect.summary[1:]}."
        yield from _notes(dialect)
        yield ""
        yield "| metric | type | labels | meaning |"
        yield "|---|---|---|---|"
        for metric in dialect.catalogue:
            yield f"| `{metric.name}` | {metric.type} | {_labels(metric)} | {metric.help.replace('|', '/')} |"


def _notes(dialect: Dialect) -> Iterator[str]:
    if not dialect.on_main:
        yield f"Not part of `/metrics`: served at `/metrics/{dialect.name}` and by its own listener."
    if dialect.open_prefixes:
        prefixes = ", ".join(f"`{prefix}*`" for prefix in dialect.open_prefixes)
        yield f"The kernel or a driver names the fields of {prefixes}: a node may have more of them than are listed."


def _labels(metric: Metric) -> str:
    return ", ".join(f"[{name}]" if name in metric.optional else name for name in metric.labels)
