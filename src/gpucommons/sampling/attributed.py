"""Puts attribution between the sources and the snapshot."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from gpucommons.model.process_context import CommandLineReading
from gpucommons.owners.attribution_stage import AttributionStage, IdentifiedGpus, ProcessWorld
from gpucommons.owners.owner import OwnerRules
from gpucommons.owners.process_identity import CommandLines, ProcessIdentities, pid_view
from gpucommons.sources.host.commands import CommandReader
from gpucommons.sources.host.pid_facts import read_pid_facts
from gpucommons.sources.host.process_details import ProcessDetailsReader
from gpucommons.sources.people.user_names import host_user_names
from gpucommons.sources.source import Source

_COMMANDS_DEADLINE_S = 5.0


def this_machine(procfs: Path) -> ProcessWorld:
    view = pid_view(read_pid_facts(procfs))
    return ProcessWorld(ProcessDetailsReader(procfs), view, host_user_names(procfs), CommandReader(procfs))


def attributed(
    sources: Iterable[Source], world: ProcessWorld, rules: OwnerRules | None = None
) -> tuple[list[Source], AttributionStage]:
    """The sources, where the GPU source also identifies the processes that it lists, and the stage to derive with.

    After the GPU source comes the source of the command lines of these processes.
    """
    identities = ProcessIdentities(world.reader, world.view)
    commands = CommandLines(world.commands, identities)
    found: list[Source] = []
    for source in sources:
        if source.feeds != "gpus":
            found.append(source)
            continue
        found.append(replace(source, read=IdentifiedGpus(source.read, identities, world.users).read))
        found.append(
            Source(
                "command_lines",
                "command_lines",
                CommandLineReading,
                commands.read,
                source.cadence_s,
                _COMMANDS_DEADLINE_S,
                runs_on=source.runs_on,
            )
        )
    return found, AttributionStage(identities, world.users, rules)
