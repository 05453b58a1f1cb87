"""gpucommons_slot_*: the state of each slot, its holders, and what it uses. The view of a fleet is made from these."""

from collections.abc import Iterator, Mapping

from gpucommons.faces.exposition.families import Family, gauge, summed
from gpucommons.model.allocations import WHOLE_SHARE, SlotStatus
from gpucommons.model.gpu import Gpu
from gpucommons.model.snapshot import Snapshot
from gpucommons.rules.identities import account_name

_SLOT = ("slot", "uuid")

STATE = gauge(
    "gpucommons_slot_state",
    "State of a slot (free, held_idle, busy, reserved, lost or unknown), as a label; always 1.",
    *_SLOT,
    "gpu",
    "gpu_uuid",
    "profile",
    "state",
    optional=("profile",),
)
HOLDER = gauge(
    "gpucommons_slot_holder_share_ratio",
    "Share of a slot that a user or pod is billed for, 0 to 1.",
    *_SLOT,
    "holder",
)
SINCE = gauge(
    "gpucommons_slot_since_timestamp_seconds",
    "Unix time at which a slot was taken, freed or lost; absent if that was before the agent started.",
    *_SLOT,
)
IDLE = gauge(
    "gpucommons_slot_idle_seconds", "Time for which the holders of a slot have not used it; absent if they do.", *_SLOT
)
UTILIZATION = gauge(
    "gpucommons_slot_utilization_ratio",
    "Share of time in which a slot was busy, 0 to 1: of a MIG device, the activity of its GPU instance.",
    *_SLOT,
)
MEMORY = gauge("gpucommons_slot_memory_bytes", "Memory of a slot, total and free.", *_SLOT, "which")

CATALOGUE = (STATE, HOLDER, SINCE, IDLE, UTILIZATION, MEMORY)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    reading = snapshot.readings.slots
    if reading is None:
        return
    slots = [((status.slot.name, status.slot.uuid), status) for status in reading.slots]
    yield STATE.of(((*labels, *_state(status)), 1) for labels, status in slots)
    yield HOLDER.of(
        summed(
            ((*labels, account_name(each.account)), each.share / WHOLE_SHARE)
            for labels, status in slots
            for each in status.holders
        )
    )
    yield SINCE.of((labels, status.since_wall_s) for labels, status in slots if status.since_wall_s is not None)
    yield IDLE.of((labels, status.idle_s) for labels, status in slots if status.idle_s is not None)
    busy = _utilization(snapshot.readings.gpus.gpus if snapshot.readings.gpus else ())
    yield UTILIZATION.of((labels, ratio) for labels, _ in slots if (ratio := busy.get(labels[1])) is not None)
    yield MEMORY.of(
        ((*labels, which), size) for labels, status in slots for which, size in _memory(status) if size is not None
    )


def _state(status: SlotStatus) -> tuple[str, str, str, str]:
    return str(status.gpu_index), status.slot.gpu_uuid, status.profile, status.state.value


def _memory(status: SlotStatus) -> tuple[tuple[str, int | None], ...]:
    return ("total", status.memory_total_bytes), ("free", status.memory_free_bytes)


def _utilization(gpus: tuple[Gpu, ...]) -> Mapping[str, float | None]:
    """By the UUID of the slot. None where it was not read."""
    found: dict[str, float | None] = {}
    for gpu in gpus:
        percent = gpu.readings.utilization_percent
        found[gpu.identity.uuid] = None if percent is None else percent / 100
        found.update((mig.uuid, None if mig.gpm is None else mig.gpm.graphics_ratio) for mig in gpu.mig)
    return found
