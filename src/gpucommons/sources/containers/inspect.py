"""One container's inspect document as a Container. Pure; a damaged field costs that field only.

Of the environment, only NVIDIA_VISIBLE_DEVICES is kept.
"""

import re

from gpucommons.model.workloads import Container, ContainerState, DeviceRequest
from gpucommons.sources.json_values import (
    JsonObject,
    integer,
    items,
    mapping,
    text,
    text_mapping,
    texts,
    wall_s,
)

_FULL_ID = re.compile(r"[0-9a-f]{64}")
_VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES="

# Editors store whole documents in labels: one that long does not name an owner.
_LONGEST_LABEL = 4096
_MOST_LABELS = 512

# Podman has states that Docker's vocabulary lacks.
_STATES = {
    "configured": ContainerState.CREATED,
    "initialized": ContainerState.CREATED,
    "stopped": ContainerState.EXITED,
    "stopping": ContainerState.RUNNING,
    **{state.value: state for state in ContainerState},
}


def is_full_id(id: str) -> bool:
    return _FULL_ID.fullmatch(id) is not None


def container_of(document: object, runtime: str) -> Container | None:
    """None if the document has no container id."""
    fields = mapping(document)
    id = text(fields.get("Id"))
    if not is_full_id(id):
        return None
    state = mapping(fields.get("State"))
    config = mapping(fields.get("Config"))
    host = mapping(fields.get("HostConfig"))
    pid = integer(state.get("Pid"))
    return Container(
        id=id,
        name=text(fields.get("Name")).removeprefix("/"),
        runtime=runtime,
        state=_STATES.get(text(state.get("Status")), ContainerState.UNKNOWN),
        image=text(config.get("Image")),
        labels=_labels(config.get("Labels")),
        init_pid=pid if pid > 0 else None,
        created_wall_s=wall_s(fields.get("Created")),
        started_wall_s=wall_s(state.get("StartedAt")),
        device_requests=tuple(_device_request(mapping(item)) for item in items(host.get("DeviceRequests"))),
        visible_devices=_visible_devices(texts(config.get("Env"))),
        devices=_device_paths(host.get("Devices")),
        privileged=host.get("Privileged") is True,
        cgroup_parent=text(host.get("CgroupParent")),
    )


def _labels(value: object) -> dict[str, str]:
    labels = {key: item for key, item in text_mapping(value).items() if len(key) + len(item) <= _LONGEST_LABEL}
    return dict(list(labels.items())[:_MOST_LABELS])


def _device_request(fields: JsonObject) -> DeviceRequest:
    return DeviceRequest(
        driver=text(fields.get("Driver")),
        count=integer(fields.get("Count")),
        device_ids=texts(fields.get("DeviceIDs")),
    )


def _visible_devices(environment: tuple[str, ...]) -> str | None:
    found = [entry for entry in environment if entry.startswith(_VISIBLE_DEVICES)]
    return found[-1].removeprefix(_VISIBLE_DEVICES) if found else None


def _device_paths(value: object) -> tuple[str, ...]:
    paths = (text(mapping(item).get("PathOnHost")) for item in items(value))
    return tuple(path for path in paths if path)
