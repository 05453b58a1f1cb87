"""Which lease a process belongs to: that of the `gpucommons run` from which it descends. Pure."""

from collections.abc import Iterable, Mapping

from gpucommons.model.leases import LeasesReading
from gpucommons.model.process_identity import ProcessKey
from gpucommons.model.snapshot import Readings


def leases_of_processes(readings: Readings) -> Mapping[ProcessKey, str]:
    """The id of the lease of each process on a GPU that descends from the client of a lease."""
    leases, contexts = readings.leases, readings.process_contexts
    if leases is None or not leases.clients or not contexts:
        return {}
    by_client = leases_by_client(leases)
    found = ((key, lease_of_ancestors(context.ancestors, by_client)) for key, context in contexts.items())
    return {key: id for key, id in found if id is not None}


def leases_by_client(leases: LeasesReading) -> Mapping[ProcessKey, str]:
    return {client: id for id, client in leases.clients.items()}


def lease_of_ancestors(ancestors: Iterable[ProcessKey], by_client: Mapping[ProcessKey, str]) -> str | None:
    """Of several, one run by another, that of the innermost."""
    return next((by_client[ancestor] for ancestor in ancestors if ancestor in by_client), None)
