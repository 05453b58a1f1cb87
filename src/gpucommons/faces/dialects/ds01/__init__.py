"""The ds01_* vocabulary of DS01's exporter: slots, containers, events and users, one module per subject.

DS01 manages containers on a shared GPU server. The agent reads its state, its event log and its container labels.
"""

from gpucommons.faces.dialects.dialect import dialect_of
from gpucommons.faces.dialects.ds01 import (
    containers,
    events,
    exporter,
    gpus,
    groups,
    mig,
    ssh_sessions,
    state,
    unmanaged,
    users,
)

DS01 = dialect_of(
    (exporter, state, gpus, mig, containers, unmanaged, events, users, groups, ssh_sessions),
    name="ds01",
    port=9101,
    summary="allocations, containers, events and users in the names of DS01's exporter",
)
