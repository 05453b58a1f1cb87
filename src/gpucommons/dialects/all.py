"""Every dialect that the agent speaks, in the order in which /metrics serves them."""

from gpucommons.dialects.dialect import Dialect
from gpucommons.dialects.gpucommons import GPUCOMMONS
from gpucommons.dialects.node import NODE

DIALECTS: tuple[Dialect, ...] = (GPUCOMMONS, NODE)
