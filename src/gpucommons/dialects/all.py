"""Every dialect that the agent speaks, in the order in which /metrics serves them."""

from gpucommons.dialects.dcgm import dcgm_dialect
from gpucommons.dialects.dialect import Dialect
from gpucommons.dialects.ds01 import DS01
from gpucommons.dialects.gpucommons import GPUCOMMONS
from gpucommons.dialects.node import NODE
from gpucommons.dialects.nodeexporter import NODEEXPORTER
from gpucommons.dialects.nvshare import NVSHARE
from gpucommons.dialects.vgpu import vgpu_dialect


def dialects(*, older_hostname: bool = False, pod_namespace: bool = True) -> tuple[Dialect, ...]:
    """With what their users may choose: dcgm's older Hostname label, and vgpu's namespace label."""
    return (
        GPUCOMMONS,
        NODE,
        NVSHARE,
        DS01,
        dcgm_dialect(older_hostname=older_hostname),
        vgpu_dialect(namespace_label=pod_namespace),
        NODEEXPORTER,
    )


DIALECTS: tuple[Dialect, ...] = dialects()
