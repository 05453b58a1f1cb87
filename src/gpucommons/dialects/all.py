"""Every dialect that the agent speaks, in the order in which /metrics serves those that it includes."""

from gpucommons.dialects.dcgm import dcgm_dialect
from gpucommons.dialects.dcgm.labels import DcgmOptions
from gpucommons.dialects.dialect import Dialect
from gpucommons.dialects.ds01 import DS01
from gpucommons.dialects.gpucommons import GPUCOMMONS
from gpucommons.dialects.node import NODE
from gpucommons.dialects.nodeexporter import NODEEXPORTER
from gpucommons.dialects.nvshare import NVSHARE
from gpucommons.dialects.vgpu import vgpu_dialect
from gpucommons.dialects.xpushare import XPUSHARE


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
