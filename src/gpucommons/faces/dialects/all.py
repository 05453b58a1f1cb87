"""Every dialect that the agent speaks, in the order in which /metrics serves those that it includes."""

from gpucommons.faces.dialects.dcgm import dcgm_dialect
from gpucommons.faces.dialects.dcgm.labels import DcgmOptions
from gpucommons.faces.dialects.dialect import Dialect
from gpucommons.faces.dialects.ds01 import DS01
from gpucommons.faces.dialects.gpucommons import GPUCOMMONS
from gpucommons.faces.dialects.node import NODE
from gpucommons.faces.dialects.nodeexporter import NODEEXPORTER
from gpucommons.faces.dialects.nvshare import NVSHARE
from gpucommons.faces.dialects.vgpu import vgpu_dialect
from gpucommons.faces.dialects.xpushare import XPUSHARE


def dialects(*, dcgm: DcgmOptions | None = None, pod_namespace: bool = True) -> tuple[Dialect, ...]:
    """With the options of their users: dcgm's labels and windows, and vgpu's namespace label."""
    return (
        GPUCOMMONS,
        NODE,
        NVSHARE,
        DS01,
        dcgm_dialect(dcgm),
        vgpu_dialect(namespace_label=pod_namespace),
        XPUSHARE,
        NODEEXPORTER,
    )


DIALECTS: tuple[Dialect, ...] = dialects()
