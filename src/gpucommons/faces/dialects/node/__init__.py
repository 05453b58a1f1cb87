"""The node agent's vocabulary: cpu_*, node_* and gpu_*, one module per part of the machine."""

from gpucommons.faces.dialects.dialect import dialect_of
from gpucommons.faces.dialects.node import gpus, host, processes

NODE = dialect_of(
    (host, processes, gpus),
    name="node",
    port=9100,
    summary="CPU, memory, pressure, processes and health of the host",
)
