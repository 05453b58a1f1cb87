"""One sample of this node without a running agent: for the commands that print it, and for `run` to choose GPUs.

It imports the agent. Commands import it only where no agent answers.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpucommons.agent.agent import Agent
from gpucommons.agent.leases.facts import leasable_slots
from gpucommons.agent.setting_rules import find_scenario
from gpucommons.base.text import memory_text
from gpucommons.cli.command_line import CommandError
from gpucommons.cli.options import load_settings
from gpucommons.config.settings import SamplingSettings
from gpucommons.faces.documents.parameters import BadParameter, read_query
from gpucommons.faces.documents.resources import RESOURCES
from gpucommons.faces.documents.view import View
from gpucommons.leases.policy.plan import fits
from gpucommons.leases.policy.values import LeasableSlot, SlotUse
from gpucommons.model.leases import LeaseRequest
from gpucommons.model.snapshot import Snapshot

# One sample of this node without a running agent, for the commands that print the current state.

# A rate needs two readings. A source that takes longer than _SETTLE_S is left out of the sample.
_BETWEEN_S = 1.0
_SETTLE_S = 0.8


def take_sample(config: Path | None, simulate: str | None, procfs: str | None) -> tuple[Agent, Snapshot]:
    """Return the stopped agent and its second snapshot, within 3 seconds even if a source hangs."""
    settings = load_settings(config, {"path.procfs": ("--path.procfs", procfs)}).settings
    # The configured intervals may be longer than a command should take.
    agent = Agent(replace(settings, sampling=SamplingSettings()), find_scenario(simulate))
    return agent, asyncio.run(_two_ticks(agent))


def api_document(snapshot: Snapshot, name: str, parameters: Mapping[str, str] | None = None) -> Mapping[str, Any]:
    """The document that the API serves under this name, of one snapshot. Raises CommandError for a bad parameter."""
    (resource,) = (resource for resource in RESOURCES if resource.name == name)
    try:
        document = resource.make(View(snapshot), read_query(tuple((parameters or {}).items()), resource.parameters))
    except BadParameter as error:
        raise CommandError(f"--{error.parameter}: {error}") from error
    assert isinstance(document, Mapping)
    return document


async def _two_ticks(agent: Agent) -> Snapshot:
    tasks = agent.start_background()
    try:
        await agent.sampler.tick(_SETTLE_S)
        await asyncio.sleep(_BETWEEN_S)
        return await agent.sampler.tick(_SETTLE_S)
    finally:
        agent.sampler.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# The GPUs that are used least now, for `gpucommons run` without an agent.


def emptiest_slots(config: Path | None, asked: LeaseRequest) -> list[dict[str, Any]]:
    """Free ones first, then those with the most free memory. Raises CommandError if there are not enough."""
    _, snapshot = take_sample(config, None, None)
    gpus, memory_bytes = asked.gpus, asked.memory_bytes
    candidates = [
        slot
        for slot in leasable_slots(snapshot.readings, {}) or ()
        if fits(asked, slot) and (memory_bytes is None or (slot.free_bytes or 0) >= memory_bytes)
    ]
    if len(candidates) < gpus:
        memory = "" if memory_bytes is None else f" with {memory_text(memory_bytes)} of free memory"
        raise CommandError(f"{gpus} GPUs{memory} requested, {len(candidates)} found; request less")
    return [{"uuid": slot.uuid, "name": slot.name} for slot in sorted(candidates, key=_emptiness)[:gpus]]


def _emptiness(slot: LeasableSlot) -> tuple[bool, int]:
    return slot.use is not SlotUse.FREE, -(slot.free_bytes or 0)
