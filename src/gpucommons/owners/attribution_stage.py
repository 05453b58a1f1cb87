"""Connects attribution to the sampler: identities with each GPU reading, attribution at each snapshot.

`IdentifiedGpus` wraps the GPU source and runs on its thread: a new process is read right after the driver listed it.
`AttributionStage` only computes, and runs on the event loop.
"""

import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple, Protocol

from gpucommons.model.gpu import GpuReading
from gpucommons.model.ownership import Attribution
from gpucommons.model.process_identity import CommandLineReading, PidScope, PidView, ProcessContext, ProcessKey
from gpucommons.model.snapshot import Readings
from gpucommons.model.workloads import all_containers
from gpucommons.owners.attribute import Attributor
from gpucommons.owners.owner import OwnerRules
from gpucommons.owners.process_identity import (
    IdentityTable,
    ProcessIdentities,
    ProcessReader,
    ReadsCommands,
    SeenProcess,
)
from gpucommons.owners.workload import Surroundings
from gpucommons.rules.placement import pods_by_place

log = logging.getLogger(__name__)


class NamesUsers(Protocol):
    known: Mapping[int, str]

    def see(self, uids: Iterable[int]) -> Mapping[int, str]: ...


def ticks_since_boot() -> int:
    """Now, in the clock ticks since boot in which the kernel reports the start of a process."""
    return math.floor(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


class ProcessSources(NamedTuple):
    """Where processes and users are read, and which processes are visible."""

    reader: ProcessReader
    view: PidView
    users: NamesUsers
    commands: ReadsCommands


class IdentifiedGpus:
    """The GPU source, which also identifies the processes it lists. Its reading is passed on unchanged."""

    def __init__(
        self,
        read_gpus: Callable[[], object],
        identities: ProcessIdentities,
        users: NamesUsers,
        ticks: Callable[[], int] = ticks_since_boot,
    ) -> None:
        self._read_gpus = read_gpus
        self._identities = identities
        self._users = users
        self._ticks = ticks
        self._table: IdentityTable | None = None
        self._uids: AbstractSet[int] = frozenset()

    def read(self) -> object:
        begun_ticks = self._ticks()
        reading = self._read_gpus()
        if isinstance(reading, GpuReading):
            try:
                self._identify(reading, begun_ticks)
            except Exception:
                log.exception(
                    "the processes on the GPUs could not be identified; the GPU readings continue without owners"
                )
        return reading

    def _identify(self, reading: GpuReading, begun_ticks: int) -> None:
        # A process on several GPUs has the same key on each.
        listed = {process.pid: process.key for gpu in reading.present_gpus() for process in gpu.processes or ()}
        table = self._identities.see([SeenProcess(pid, key) for pid, key in listed.items()], begun_ticks)
        if table is not self._table:
            uids = {
                uid
                for identity in table.by_key.values()
                for uid in (identity.uid, identity.cgroup.uid)
                if uid is not None
            }
            self._table, self._uids = table, uids
        self._users.see(self._uids)


class AttributionStage:
    """Adds the attribution and the contexts of processes to the readings; computes each again only if it changed."""

    def __init__(self, identities: ProcessIdentities, users: NamesUsers, rules: OwnerRules | None = None) -> None:
        self._identities = identities
        self._users = users
        self._attributor = Attributor(rules)
        self._known: tuple[object, ...] = ()
        self._around = Surroundings()
        self._folded: tuple[GpuReading, IdentityTable, Surroundings] | None = None
        self._attribution: Attribution | None = None
        self._warned = False
        self._lines = CommandLineReading()
        self._described: tuple[IdentityTable, CommandLineReading] | None = None
        self._contexts: Mapping[ProcessKey, ProcessContext] = {}

    def __call__(self, readings: Readings) -> Readings:
        if readings.gpus is None:
            return readings
        if not self._warned and self._identities.table.view.scope is not PidScope.HOST:
            self._warned = True
            log.warning("not every GPU process is visible: %s", self._identities.table.view.sentence)
        inputs = (readings.gpus, self._identities.table, self._surroundings(readings, readings.gpus))
        if self._folded is None or any(new is not old for new, old in zip(inputs, self._folded, strict=True)):
            self._attribution = self._attributor.attribute(*inputs)
            self._folded = inputs
        contexts = self._describe(inputs[1], readings.command_lines)
        return readings._replace(attribution=self._attribution, process_contexts=contexts)

    def _describe(self, table: IdentityTable, lines: CommandLineReading | None) -> Mapping[ProcessKey, ProcessContext]:
        """While the command lines cannot be read, the last known ones stay: a process keeps its name."""
        self._lines = self._lines if lines is None else lines
        if self._described is None or self._described[0] is not table or self._described[1] is not self._lines:
            self._described = table, self._lines
            self._contexts = {
                key: ProcessContext(
                    self._lines.by_key.get(key, ()), identity.cgroup.scope, identity.session_id, identity.ancestors
                )
                for key, identity in table.by_key.items()
            }
        return self._contexts

    def _surroundings(self, readings: Readings, gpus: GpuReading) -> Surroundings:
        """The same object for as long as nothing in it has changed, so that findings stay valid."""
        layout = [(g.identity, [(m.uuid, m.gpu_instance_id) for m in g.mig]) for g in gpus.gpus]
        names = self._users.known
        inputs = (readings.docker, readings.podman, readings.pods, readings.pod_devices, names, layout)
        if inputs != self._known:
            devices = readings.pod_devices
            self._around = Surroundings(
                all_containers(readings.docker, readings.podman),
                readings.pods,
                pods_by_place(gpus.gpus, devices) if devices else {},
                names,
            )
            self._known = inputs
        return self._around
