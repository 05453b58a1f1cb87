"""The gpucommons_* vocabulary: what no other dialect has a name for, one module per subject."""

from gpucommons.faces.dialects.dialect import dialect_of
from gpucommons.faces.dialects.gpucommons import (
    accounts,
    agent,
    allocations,
    attribution,
    containers,
    event_log,
    exposition,
    followed_events,
    gpu_parts,
    gpu_unattributed,
    gpus,
    health,
    idle,
    leases,
    ledger,
    mps,
    nvml,
    owners,
    parking,
    pauser,
    problems,
    quotas,
    sharing,
    slots,
    snapshots,
    sources,
    vgpu,
    web,
)

GPUCOMMONS = dialect_of(
    (
        *(snapshots, agent, exposition, web, sources, health, problems),
        *(gpus, gpu_parts, nvml, owners, gpu_unattributed, attribution, vgpu),
        *(containers, allocations, slots, followed_events, quotas, ledger, accounts, event_log),
        *(sharing, pauser, parking, leases, mps, idle),
    ),
    name="gpucommons",
    port=9460,
    summary="owners, unattributed use, accounts and the agent itself: what no other vocabulary names",
)
