"""DS01's vocabulary, ds01_*: who holds which slot, containers, events and people, one module per subject."""

from gpucommons.faces.dialects.dialect import dialect_of
from gpucommons.faces.dialects.ds01 import allocations, events, node, users

DS01 = dialect_of(
    (node, allocations, events, users),
    name="ds01",
    port=9101,
    summary="allocations, containers, events and people in the names of DS01's exporter",
)
