"""The slots of a node, whole GPUs and MIG devices, and the slots of a name, a device id or a process. Pure."""

import re
from collections import Counter
from collections.abc import Sequence

from gpucommons.model.allocations import SlotInfo
from gpucommons.model.gpu import Gpu, MigInstance
from gpucommons.model.pods import DeviceId
from gpucommons.model.usage import Slot
from gpucommons.rules.identities import slot_name

_NUMBER = re.compile(r"\d{1,4}", re.ASCII)
# GPU 1's MIG device 0 as DS01 writes it (1.0) and as NVIDIA does (1:0).
_MIG_NUMBER = re.compile(r"(\d{1,4})[.:](\d{1,4})", re.ASCII)
_SHORTEST_PREFIX = 8

Slots = tuple[SlotInfo, ...]


class SlotTable:
    def __init__(self, gpus: Sequence[Gpu]) -> None:
        present = [gpu for gpu in gpus if gpu.up]
        self._by_index = {gpu.identity.index: _slots_of(gpu) for gpu in present}
        self._by_minor = {
            gpu.identity.index if gpu.identity.minor is None else gpu.identity.minor: gpu.identity.index
            for gpu in present
        }
        self._index_of = {gpu.identity.uuid: gpu.identity.index for gpu in present}
        self.gpu_count = len(present)
        self.all: Slots = tuple(info for index in sorted(self._by_index) for info in self._by_index[index])
        self.usable: Slots = tuple(info for info in self.all if not info.is_rest)
        self._by_uuid = {info.slot.uuid: info for info in self.usable}

    def gpu(self, index: int) -> Slots:
        """The slots of a GPU: itself, or its MIG devices if it is split."""
        return tuple(info for info in self._by_index.get(index, ()) if not info.is_rest)

    def minor(self, number: int) -> Slots:
        """The GPU of device file /dev/nvidiaN, whose number is not always its index."""
        return self.gpu(self._by_minor.get(number, -1))

    def gpu_instance(self, index: int, gpu_instance_id: int | None) -> Slots:
        """The MIG devices of one GPU instance; without an instance, the slots of the whole GPU."""
        slots = self.gpu(index)
        return slots if gpu_instance_id is None else tuple(s for s in slots if s.gpu_instance_id == gpu_instance_id)

    def first(self, count: int) -> Slots:
        """The first GPUs: a runtime allocates these for a request by number."""
        return tuple(info for index in sorted(self._by_index)[:count] for info in self.gpu(index))

    def named(self, text: str) -> Slots:
        """The slots of an index, `1.0`, `1:0`, a UUID or a UUID prefix. Empty if this node has no such slot."""
        if _NUMBER.fullmatch(text):
            return self.gpu(int(text))
        if mig := _MIG_NUMBER.fullmatch(text):
            inside = self.gpu(int(mig[1]))
            number = int(mig[2])
            return (inside[number],) if number < len(inside) and inside[number].mig_enabled else ()
        found = self._by_uuid.get(text)
        if found is not None:
            return (found,)
        if text in self._index_of:
            return self.gpu(self._index_of[text])
        return self._by_prefix(text)

    def device(self, device: DeviceId) -> Slots:
        """The slots of a device plugin's id."""
        if device.mig_uuid is not None:
            return self.named(device.mig_uuid)
        if device.gpu_uuid is not None:
            slots = self.named(device.gpu_uuid)
        else:
            slots = self.minor(device.gpu_index) if device.gpu_index is not None else ()
        if device.gpu_instance is None:
            return slots
        instance = (device.gpu_instance, device.compute_instance)
        return tuple(
            s for s in slots if instance in ((s.gpu_instance_id, s.compute_instance_id), (s.gpu_instance_id, None))
        )

    def at(self, gpu_uuid: str, gpu_instance_id: int | None, compute_instance_id: int | None) -> SlotInfo | None:
        """The slot of a process. In a GPU instance with several MIG devices, the first if it is unknown which."""
        slots = self.gpu(self._index_of.get(gpu_uuid, -1))
        if gpu_instance_id is None:
            return slots[0] if len(slots) == 1 and not slots[0].mig_enabled else None
        inside = [s for s in slots if s.gpu_instance_id == gpu_instance_id]
        exactly = [s for s in inside if s.compute_instance_id == compute_instance_id]
        return next(iter(exactly or inside), None)

    def _by_prefix(self, text: str) -> Slots:
        if len(text) < _SHORTEST_PREFIX:
            return ()
        slots = [info for uuid, info in self._by_uuid.items() if uuid.startswith(text)]
        gpus = [index for uuid, index in self._index_of.items() if uuid.startswith(text)]
        if len(slots) == 1:
            return (slots[0],)
        return self.gpu(gpus[0]) if len(gpus) == 1 else ()


def _slots_of(gpu: Gpu) -> Slots:
    identity, name = gpu.identity, slot_name(gpu.identity.index)
    known = gpu.processes is not None
    if not gpu.mig_enabled:
        return (SlotInfo(Slot(identity.uuid, identity.uuid, name), identity.index, processes_known=known),)
    total = gpu.mig_slices
    slots = [_mig_slot(gpu, number, instance, known) for number, instance in enumerate(gpu.mig)]
    left = 0 if total is None else total - sum(instance.compute_slices for instance in gpu.mig)
    if total is not None and left > 0:
        rest = Slot(identity.uuid, identity.uuid, name, left, total)
        slots.append(SlotInfo(rest, identity.index, mig_enabled=True, is_rest=True, processes_known=known))
    return tuple(slots)


def _mig_slot(gpu: Gpu, number: int, instance: MigInstance, known: bool) -> SlotInfo:
    identity, total = gpu.identity, gpu.mig_slices
    slot = Slot(
        instance.uuid,
        identity.uuid,
        slot_name(identity.index, number),
        None if total is None else min(instance.compute_slices, total),
        total or 1,
    )
    # Attribution has SM time as a part of the whole GPU, weighted by the slices of its instances.
    all_slices = sum(each.gpu_instance_slices for each in gpu.gpu_instances())
    sharing = Counter(each.gpu_instance_id for each in gpu.mig)[instance.gpu_instance_id]
    own_slices = instance.gpu_instance_slices / sharing
    return SlotInfo(
        slot,
        identity.index,
        instance.profile,
        instance.gpu_instance_id,
        instance.compute_instance_id,
        mig_enabled=True,
        sm_scale=all_slices / own_slices if own_slices else 1.0,
        processes_known=known,
    )
