"""node_boot_time_*, node_context_switches_*, node_forks_*, node_intr_*, node_procs_*: what /proc/stat counts."""

from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, counter, gauge
from gpucommons.model.snapshot import Snapshot

BOOT_TIME = gauge("node_boot_time_seconds", "Unix time at which the host booted.")
CONTEXT_SWITCHES = counter("node_context_switches_total", "Context switches since boot.")
FORKS = counter("node_forks_total", "Processes and threads created since boot.")
INTERRUPTS = counter("node_intr_total", "Interrupts served since boot.")
RUNNING = gauge("node_procs_running", "Processes that run or are ready to run.")
BLOCKED = gauge("node_procs_blocked", "Processes that wait for I/O.")

CATALOGUE = (BOOT_TIME, CONTEXT_SWITCHES, FORKS, INTERRUPTS, RUNNING, BLOCKED)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    cpu = snapshot.readings.cpu
    activity = None if cpu is None else cpu.activity
    if activity is not None:
        yield BOOT_TIME.value(activity.boot_time_s)
        yield CONTEXT_SWITCHES.value(activity.context_switches)
        yield FORKS.value(activity.forks)
        yield INTERRUPTS.value(activity.interrupts)
        yield RUNNING.value(activity.processes_running)
        yield BLOCKED.value(activity.processes_blocked)
