"""The GPUs that are used least now, for `gpucommons run` without an agent."""

from pathlib import Path
from typing import Any

from gpucommons.agent.leases.facts import leasable_slots
from gpucommons.cli.command_line import CommandError
from gpucommons.cli.one_sample import take_sample
from gpucommons.leases.policy.values import LeasableSlot, SlotUse


def emptiest_slots(config: Path | None, gpus: int, memory_bytes: int | None) -> list[dict[str, Any]]:
    """Free ones first, then those with the most free memory. Raises CommandError if there are not enough."""
    _, snapshot = take_sample(config, None, None)
    found = [
        slot
        for slot in leasable_slots(snapshot.readings, {}) or ()
        if slot.use is not SlotUse.LOST
        and not (gpus > 1 and slot.is_mig)
        and (memory_bytes is None or (slot.free_bytes or 0) >= memory_bytes)
    ]
    if len(found) < gpus:
        memory = "" if memory_bytes is None else f" with {memory_bytes / 2**30:.1f} GiB of free memory"
        raise CommandError(f"{gpus} GPUs{memory} requested, {len(found)} found; request less")
    return [{"uuid": slot.uuid, "name": slot.name} for slot in sorted(found, key=_emptiness)[:gpus]]


def _emptiness(slot: LeasableSlot) -> tuple[bool, int]:
    return slot.use is not SlotUse.FREE, -(slot.free_bytes or 0)
