"""gpucommons_kubernetes_*: the shares that the agent offers to pods, and the GPU faults that it reports."""

from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, counter, gauge
from gpucommons.model.snapshot import Snapshot

SHARES = gauge(
    "gpucommons_kubernetes_shares",
    "Shares of GPUs that the device plugin offers to pods, by resource and health (healthy, unhealthy).",
    "resource",
    "health",
)
REGISTRATIONS = counter(
    "gpucommons_kubernetes_registrations_total",
    "Registrations with the kubelet since the agent started: one for each resource and start of the kubelet.",
)
FAULTS = gauge("gpucommons_kubernetes_faults", "GPU faults that the condition GPUProblem of the node shows.")
TAINTED = gauge("gpucommons_kubernetes_tainted", "Taint of the node because of a GPU fault: 1 if set, 0 if not.")

CATALOGUE = (SHARES, REGISTRATIONS, FAULTS, TAINTED)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    plugin, faults = snapshot.readings.device_plugin, snapshot.readings.node_faults
    if plugin is not None:
        yield SHARES.of(
            ((resource.name, health), count)
            for resource in plugin.resources
            for health, count in (("healthy", resource.healthy), ("unhealthy", resource.unhealthy))
        )
        yield REGISTRATIONS.value(plugin.registrations)
    if faults is not None:
        yield FAULTS.value(faults.faults)
        yield TAINTED.value(int(faults.tainted))
