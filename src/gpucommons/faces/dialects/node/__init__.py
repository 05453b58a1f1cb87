"""The vocabulary of the node agent: cpu_*, node_* and gpu_*, one module per prefix."""

from gpucommons.faces.dialects.dialect import dialect_of
from gpucommons.faces.dialects.node import cpu, gpus, node

NODE = dialect_of(
    (cpu, node, gpus),
    name="node",
    port=9100,
    summary="CPU, memory, pressure, processes and health of the host",
)
