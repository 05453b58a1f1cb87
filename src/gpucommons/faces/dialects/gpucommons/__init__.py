"""The gpucommons_* vocabulary: what no other dialect has a name for, one module per subject."""

from gpucommons.faces.dialects.dialect import dialect_of
from gpucommons.faces.dialects.gpucommons import accounts, agent, gpus, jobs, kubernetes, leases, owners, sharing, slots

GPUCOMMONS = dialect_of(
    (agent, gpus, owners, slots, accounts, sharing, leases, jobs, kubernetes),
    name="gpucommons",
    port=9460,
    summary="owners, unattributed use, accounts and the agent itself: what no other vocabulary names",
)
