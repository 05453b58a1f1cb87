"""DS01's rules for one container: whether it is tracked, its user, its interface, and the GPUs it may use.

Pure. Each rule checks several places in order and uses the first that has an answer.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from gpucommons.holding.slots import Slots, SlotTable
from gpucommons.model.allocations import Access
from gpucommons.model.containers import Container, DeviceRequest

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
    return SliceOwner(_unescaped(group), _unescaped(user))


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
    found = _requested(container, table) or _labelled(container, table) or _visible(container, table)
    bare = _bare(container, table)
    if found is None:
        return bare
    return found if bare is None else found._replace(bypasses=True)


def _requested(container: Container, table: SlotTable) -> RequestedDevices | None:
    requests = [request for request in container.device_requests if _is_for_gpus(request)]
    names = [name for request in requests for name in request.device_ids]
    if names:
        return _named(names, table)
    if any(request.count == -1 for request in requests):
        return _everything(table)
    count = sum(request.count for request in requests if request.count > 0)
    return RequestedDevices(Access.COUNT, table.first(count), requested=count) if count else None


def _is_for_gpus(request: DeviceRequest) -> bool:
    if request.driver == "cdi":
        return any(name.startswith(_CDI) for name in request.device_ids)
    return request.driver in ("", "nvidia")


def _labelled(container: Container, table: SlotTable) -> RequestedDevices | None:
    names = _listed(container.labels.get("ds01.gpu.uuids", ""))
    return _named(names, table) if names else None


def _visible(container: Container, table: SlotTable) -> RequestedDevices | None:
    names = _listed(container.visible_devices or "")
    return _named(names, table) if names and names[0] not in _NOTHING else None


def _bare(container: Container, table: SlotTable) -> RequestedDevices | None:
    """Access through device files, which bypasses the runtime's allocation."""
    if container.privileged:
        return _everything(table)._replace(bypasses=True)
    found = [(path, _DEVICE_FILE.fullmatch(path)) for path in container.devices]
    files = [(path, table.minor(int(match[1]))) for path, match in found if match]
    if not files:
        return None
    slots = tuple(slot for _, each in files for slot in each)
    return RequestedDevices(Access.SPECIFIC, slots, tuple(path for path, each in files if not each), bypasses=True)


def _named(names: list[str], table: SlotTable) -> RequestedDevices:
    """A CDI name is `nvidia.com/gpu=0`; the part after `=` is a device name."""
    plain = [name.rpartition("=")[2] if name.startswith(_CDI) else name for name in names]
    if "all" in plain:
        return _everything(table)
    slots = dict.fromkeys(slot for name in plain for slot in table.named(name))
    return RequestedDevices(Access.SPECIFIC, tuple(slots), tuple(name for name in plain if not table.named(name)))


def _everything(table: SlotTable) -> RequestedDevices:
    return RequestedDevices(Access.ALL, table.usable, requested=table.gpu_count)


def _listed(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)
