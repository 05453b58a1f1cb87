"""The slots of a node, whole GPUs and MIG devices, and the slots that a name, a device id or a container means.

DS01's containers name theirs in labels of their own: its rules for one container are here as well.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gpucommons.model.allocations import Access, Slot, SlotInfo
from gpucommons.model.gpu import Gpu, MigInstance
from gpucommons.model.names import slot_name
from gpucommons.model.workloads import Container, DeviceId, DeviceRequest

# The slots of a node, whole GPUs and MIG devices, and the slots of a name, a device id or a process. Pure.

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

    def find(self, text: str) -> Slots:
        """The slots of an index, `1.0`, `1:0`, a UUID or a UUID prefix. Empty if this node has no such slot."""
        if _NUMBER.fullmatch(text):
            return self.gpu(int(text))
        if mig := _MIG_NUMBER.fullmatch(text):
            inside = self.gpu(int(mig[1]))
            number = int(mig[2])
            return (inside[number],) if number < len(inside) and inside[number].mig_enabled else ()
        slot = self._by_uuid.get(text)
        if slot is not None:
            return (slot,)
        if text in self._index_of:
            return self.gpu(self._index_of[text])
        return self._by_prefix(text)

    def device(self, device: DeviceId) -> Slots:
        """The slots of a device plugin's id."""
        if device.mig_uuid is not None:
            return self.find(device.mig_uuid)
        if device.gpu_uuid is not None:
            slots = self.find(device.gpu_uuid)
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
        # A GPU that is not split is one slot, without an instance; each slot of another has one.
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
    processes_known = gpu.processes is not None
    if not gpu.mig_enabled:
        return (SlotInfo(Slot(identity.uuid, identity.uuid, name), identity.index, processes_known=processes_known),)
    total = gpu.mig_slices
    slots = [_mig_slot(gpu, number, instance, processes_known) for number, instance in enumerate(gpu.mig)]
    left = 0 if total is None else total - sum(instance.compute_slices for instance in gpu.mig)
    if total is not None and left > 0:
        rest = Slot(identity.uuid, identity.uuid, name, left, total)
        slots.append(SlotInfo(rest, identity.index, mig_enabled=True, is_rest=True, processes_known=processes_known))
    return tuple(slots)


def _mig_slot(gpu: Gpu, number: int, instance: MigInstance, processes_known: bool) -> SlotInfo:
    identity, total = gpu.identity, gpu.mig_slices
    slot = Slot(
        instance.uuid,
        identity.uuid,
        slot_name(identity.index, number),
        None if total is None else min(instance.compute_slices, total),
        total or 1,
    )
    # Attribution has SM time as a part of the whole GPU, weighted by the slices of its instances.
    all_slices = sum(other.gpu_instance_slices for other in gpu.gpu_instances())
    sharing = Counter(other.gpu_instance_id for other in gpu.mig)[instance.gpu_instance_id]
    own_slices = instance.gpu_instance_slices / sharing
    return SlotInfo(
        slot,
        identity.index,
        instance.profile,
        instance.gpu_instance_id,
        instance.compute_instance_id,
        mig_enabled=True,
        sm_scale=all_slices / own_slices if own_slices else 1.0,
        processes_known=processes_known,
    )


# DS01's rules for one container: whether it is tracked, its user, its interface, and the GPUs it may use.
#
# Pure. Each rule checks several places in order and uses the first that has an answer.

_AIME_MARK = "._."
_AIME_UID = re.compile(r".*\._\.(\d{1,10})", re.ASCII | re.DOTALL)
_HOME = re.compile(r"/home/([^/]+)(?:/|$)")
_ESCAPED = re.compile(r"\\x([0-9a-f]{2})", re.ASCII)
_DEVICE_FILE = re.compile(r"/dev/nvidia(\d{1,4})", re.ASCII)
_DEVCONTAINER = "devcontainer.local_folder"
_COMPOSE = "com.docker.compose.project.working_dir"
_OTHER_NAMES = ("vscode-", "jupyter-", "jupyterhub-")
_OTHER_LABELS = ("devcontainer.", "com.docker.compose.", "hub.jupyter.org/username")
# DS01's own monitoring stack, which may see every GPU.
_STACK_NAMES = ("ds01-prometheus", "ds01-grafana", "ds01-alertmanager", "ds01-dcgm-exporter", "ds01-node-exporter")
_CDI = "nvidia.com/"
_NOTHING = ("", "none", "void")


def is_tracked(container: Container) -> bool:
    return (
        container.cgroup_parent.rpartition("/")[2].startswith("ds01")
        or any(label.startswith("ds01.") for label in container.labels)
        or _AIME_MARK in container.name
    )


def is_infrastructure(container: Container) -> bool:
    """Whether DS01 marks it as part of the site's monitoring: its access to all GPUs is intended."""
    protected = container.labels.get("ds01.protected", "").strip().lower() == "true"
    return protected or container.name.startswith(_STACK_NAMES)


class SliceOwner(NamedTuple):
    group: str
    user: str


def slice_owner(name: str) -> SliceOwner | None:
    """The group and user of `ds01-<group>-<user>.slice`. systemd escapes a dash within a name as \\x2d."""
    name = name.rpartition("/")[2]
    if not (name.startswith("ds01-") and name.endswith(".slice")):
        return None
    group, dash, user = name.removeprefix("ds01-").removesuffix(".slice").partition("-")
    if not (group and dash and user):
        return None
    return SliceOwner(_unescape(group), _unescape(user))


def user_of(container: Container, names: Mapping[int, str]) -> str:
    """Empty if it is known only from the processes."""
    labels = container.labels
    if named := labels.get("ds01.user", "").strip() or labels.get("aime.mlc.USER", "").strip():
        return named
    if sliced := slice_owner(container.cgroup_parent):
        return sliced.user
    if aime := _AIME_UID.fullmatch(container.name):
        uid = int(aime[1])
        return names.get(uid, str(uid))
    for label in (_DEVCONTAINER, _COMPOSE):
        if home := _HOME.search(labels.get(label, "")):
            return home[1]
    return ""


def interface_of(container: Container) -> str:
    """The label's value is passed on unchanged, also if it is unknown."""
    labels, name = container.labels, container.name
    if interface := labels.get("ds01.interface", "").strip():
        return interface
    if labels.get("ds01.managed", "").strip().lower() == "true" or _AIME_MARK in name:
        return "atomic"
    if name.startswith(_OTHER_NAMES) or any(label.startswith(_OTHER_LABELS) for label in labels):
        return "other"
    return "docker"


class RequestedDevices(NamedTuple):
    """The GPUs that a container may use; `unknown` are devices that this node does not have."""

    access: Access
    slots: Slots
    unknown: tuple[str, ...] = ()
    requested: int | None = None
    bypasses: bool = False

    @property
    def gpu_count(self) -> int:
        return len(self.slots) + len(self.unknown) if self.requested is None else self.requested


def devices_of(container: Container, table: SlotTable) -> RequestedDevices | None:
    """None if it may not use a GPU."""
    devices = _requested_devices(container, table) or _labelled_devices(container, table) or _visible(container, table)
    bare = _bare(container, table)
    if devices is None:
        return bare
    return devices if bare is None else devices._replace(bypasses=True)


def _requested_devices(container: Container, table: SlotTable) -> RequestedDevices | None:
    requests = [request for request in container.device_requests if _is_for_gpus(request)]
    # Docker puts all CDI devices into one request, also those that are no GPUs.
    names = [name for one in requests for name in one.device_ids if one.driver != "cdi" or name.startswith(_CDI)]
    if names:
        return _find_devices(names, table)
    if any(request.count == -1 for request in requests):
        return _everything(table)
    count = sum(request.count for request in requests if request.count > 0)
    return RequestedDevices(Access.COUNT, table.first(count), requested=count) if count else None


def _is_for_gpus(request: DeviceRequest) -> bool:
    if request.driver == "cdi":
        return any(name.startswith(_CDI) for name in request.device_ids)
    return request.driver in ("", "nvidia")


def _labelled_devices(container: Container, table: SlotTable) -> RequestedDevices | None:
    names = _split_list(container.labels.get("ds01.gpu.uuids", ""))
    return _find_devices(names, table) if names else None


def _visible(container: Container, table: SlotTable) -> RequestedDevices | None:
    names = _split_list(container.visible_devices or "")
    return _find_devices(names, table) if names and names[0] not in _NOTHING else None


def _bare(container: Container, table: SlotTable) -> RequestedDevices | None:
    """Access through device files, which bypasses the runtime's allocation."""
    if container.privileged:
        return _everything(table)._replace(bypasses=True)
    matches = [(path, _DEVICE_FILE.fullmatch(path)) for path in container.devices]
    files = [(path, table.minor(int(match[1]))) for path, match in matches if match]
    if not files:
        return None
    slots = tuple(slot for _, there in files for slot in there)
    return RequestedDevices(Access.SPECIFIC, slots, tuple(path for path, there in files if not there), bypasses=True)


def _find_devices(names: list[str], table: SlotTable) -> RequestedDevices:
    """A CDI name is `nvidia.com/gpu=0`; the part after `=` is a device name."""
    plain = [name.rpartition("=")[2] if name.startswith(_CDI) else name for name in names]
    if "all" in plain:
        return _everything(table)
    slots = dict.fromkeys(slot for name in plain for slot in table.find(name))
    return RequestedDevices(Access.SPECIFIC, tuple(slots), tuple(name for name in plain if not table.find(name)))


def _everything(table: SlotTable) -> RequestedDevices:
    return RequestedDevices(Access.ALL, table.usable, requested=table.gpu_count)


def _split_list(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _unescape(text: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text)
