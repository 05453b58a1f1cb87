"""Puts attribution between the sources and the snapshot."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from gpucommons.attribution.owner import OwnerRules
from gpucommons.attribution.pid_view import pid_view
from gpucommons.attribution.process_identity import ProcessIdentities
from gpucommons.attribution.stage import AttributionStage, IdentifiedGpus, ProcessWorld
from gpucommons.sources.host.pid_facts import read_pid_facts
from gpucommons.sources.host.process_details import ProcessDetailsReader
from gpucommons.sources.people.user_names import host_user_names
from gpucommons.sources.source import Source


def this_machine(procfs: Path) -> ProcessWorld:
    return ProcessWorld(ProcessDetailsReader(procfs), pid_view(read_pid_facts(procfs)), host_user_names(procfs))


def attributed(
    sources: Iterable[Source], world: ProcessWorld, rules: OwnerRules | None = None
) -> tuple[list[Source], AttributionStage]:
    """The sources, where the GPU source also identifies the processes that it lists, and the stage to derive with."""
    identities = ProcessIdentities(world.reader, world.view)
    wrapped = [
        replace(source, read=IdentifiedGpus(source.read, identities, world.users).read)
        if source.feeds == "gpus"
        else source
        for source in sources
    ]
    return wrapped, AttributionStage(identities, world.users, rules)
