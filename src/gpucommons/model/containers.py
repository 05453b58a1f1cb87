"""The containers of one runtime at an instant. A container is identified by its full id.

Of a container's environment only NVIDIA_VISIBLE_DEVICES is kept: the rest may contain secrets.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class ContainerState(StrEnum):
    CREATED = "created"
    RUNNING = "running"
    PAUSED = "paused"
    RESTARTING = "restarting"
    REMOVING = "removing"
    EXITED = "exited"
    DEAD = "dead"
    UNKNOWN = "unknown"

    @property
    def has_processes(self) -> bool:
        """Whether it has processes. A container without processes may still hold its GPUs."""
        return self in (ContainerState.RUNNING, ContainerState.PAUSED)


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """A device request by `--gpus` or a CDI device. A count of -1 means all devices.

    `device_ids` are as the user wrote them: an index, a UUID, `0:1` for a MIG device, a CDI name.
    """

    driver: str
    count: int
    device_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Container:
    """One container, running or not. Renaming changes `name`, restarting `init_pid` and `started_wall_s`.

    `visible_devices` is its NVIDIA_VISIBLE_DEVICES: None if unset, which differs from the empty string. `devices` are
    the host paths of devices that were passed in individually.
    """

    id: str
    name: str
    runtime: str
    state: ContainerState
    image: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    init_pid: int | None = None
    created_wall_s: float | None = None
    started_wall_s: float | None = None
    device_requests: tuple[DeviceRequest, ...] = ()
    visible_devices: str | None = None
    devices: tuple[str, ...] = ()
    privileged: bool = False
    cgroup_parent: str = ""


class ContainerReading(NamedTuple):
    """Every container of one runtime, by full id."""

    by_id: Mapping[str, Container]


def all_containers(*readings: ContainerReading | None) -> Mapping[str, Container]:
    """The containers of several runtimes by full id; an absent runtime has none."""
    present = [reading.by_id for reading in readings if reading is not None]
    if len(present) == 1:
        return present[0]
    return {id: container for by_id in present for id, container in by_id.items()}


class ContainerUsage(NamedTuple):
    """`memory_bytes` excludes file cache that can be dropped; `memory_limit_bytes` is None without a limit."""

    name: str
    runtime: str
    cpu_seconds: float | None
    memory_bytes: int | None
    memory_limit_bytes: int | None


class ContainerUsageReading(NamedTuple):
    by_id: Mapping[str, ContainerUsage]
