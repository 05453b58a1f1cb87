"""Our own vocabulary, gpucommons_*: what no other dialect names, one module per subject."""

from gpucommons.faces.dialects.dialect import dialect_of
from gpucommons.faces.dialects.gpucommons import (
    accounts,
    agent,
    allocations,
    containers,
    gpu_parts,
    gpus,
    health,
    nvml,
    owners,
    sharing,
    sources,
    waits,
)

GPUCOMMONS = dialect_of(
    (agent, sources, health, gpus, gpu_parts, nvml, owners, containers, allocations, accounts, sharing, waits),
    name="gpucommons",
    port=9460,
    summary="owners, remainder, accounts and the agent itself: what no other vocabulary names",
)
