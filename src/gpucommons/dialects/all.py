"""Every dialect that the agent speaks, in the order in which /metrics serves them."""

from gpucommons.dialects.dcgm import DCGM
from gpucommons.dialects.dialect import Dialect
from gpucommons.dialects.gpucommons import GPUCOMMONS
from gpucommons.dialects.node import NODE
from gpucommons.dialects.nvshare import NVSHARE

DIALECTS: tuple[Dialect, ...] = (GPUCOMMONS, NODE, NVSHARE, DCGM)
