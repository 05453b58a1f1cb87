"""Which lease a process belongs to: that of the `gpucommons run` from which it descends. Pure."""

from collections.abc import Mapping

from gpucommons.model.process_context import ProcessContext
from gpucommons.model.process_identity import ProcessKey
from gpucommons.model.snapshot import Readings


def leases_of_processes(readings: Readings) -> Mapping[ProcessKey, str]:
    """The id of the lease of each process on a GPU that descends from the client of a lease."""
    leases, contexts = readings.leases, readings.process_contexts
    if leases is None or not leases.clients or not contexts:
        return {}
    by_client = {client: id for id, client in leases.clients.items()}
    found = ((key, _lease_of(context, by_client)) for key, context in contexts.items())
    return {key: id for key, id in found if id is not None}


def _lease_of(context: ProcessContext, by_client: Mapping[ProcessKey, str]) -> str | None:
    """Of several, one run by another, that of the innermost."""
    return next((by_client[ancestor] for ancestor in context.ancestors if ancestor in by_client), None)
