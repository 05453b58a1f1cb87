"""All dialects, in the order in which /metrics serves them."""

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
