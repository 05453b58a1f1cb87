"""Who uses what of each GPU at an instant, and what has no owner. Whole numbers, so that sums are exact.

The rows are NamedTuples, not dataclasses: each pass makes them anew for every process on every GPU.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from gpucommons.model.process_identity import PidView, ProcessKey


class Reason(StrEnum):
    PID_NAMESPACE = "pid_namespace"
    PROCESS_GONE = "process_gone"
    PROCESS_UNREADABLE = "process_unreadable"
    NO_OWNER = "no_owner"
    NO_MEMORY_READING = "no_memory_reading"
    NO_UTILIZATION_SAMPLE = "no_utilization_sample"
    DRIVER_RESERVED = "driver_reserved"
    NOT_VISIBLE = "not_visible"
    NO_PROCESS = "no_process"
    NO_PROCESS_LIST = "no_process_list"
    ROUNDING = "rounding"


SENTENCES: Mapping[Reason, str] = {
    Reason.PID_NAMESPACE: "used by a process of another pid namespace, which we cannot see from ours",
    Reason.PROCESS_GONE: "used by a process that ended before it could be looked at",
    Reason.PROCESS_UNREADABLE: "used by a process that we are not permitted to read",
    Reason.NO_OWNER: "used by a process that no owner rule matches",
    Reason.NO_MEMORY_READING: "the driver does not tell how much each process of this GPU uses",
    Reason.NO_UTILIZATION_SAMPLE: "the GPU was busy, but no sample says for which process",
    Reason.DRIVER_RESERVED: "kept by the driver, in no process",
    Reason.NOT_VISIBLE: "the driver lists no process for it, and processes outside our namespace are hidden",
    Reason.NO_PROCESS: "drawn while no process was on the GPU",
    Reason.NO_PROCESS_LIST: "the driver did not tell which processes are on this GPU",
    Reason.ROUNDING: "what is left after division into whole parts",
}


class Basis(StrEnum):
    """MEASURED: the driver told this of this process. APPORTIONED: a share of what it told of the GPU."""

    MEASURED = "measured"
    APPORTIONED = "apportioned"


class Portion(NamedTuple):
    """Some of a GPU: bytes of memory, millionths of its SM time, or milliwatts."""

    amount: int
    basis: Basis


class OwnerKind(StrEnum):
    SITE = "site"
    POD = "pod"
    LABEL = "label"
    JOB = "job"
    UNIT = "unit"
    USER = "user"


@dataclass(frozen=True, slots=True)
class Owner:
    """Whom a share belongs to. `id` is stable within its kind (pod UID, uid, job id); names may change."""

    kind: OwnerKind
    id: str
    name: str
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class PodPlace:
    """The pod that a process runs in. `name` is empty where only its UID is known."""

    uid: str
    name: str = ""
    namespace: str = ""
    container: str = ""


@dataclass(frozen=True, slots=True)
class Workload:
    """What a process was found to belong to, before any rule says who owns it. None is unknown.

    `delegated`: its cgroup is in a tree that user `uid` may write: container, job and unit are claims of that user.
    """

    process_name: str = ""
    uid: int | None = None
    user: str | None = None
    container_id: str | None = None
    container_name: str | None = None
    image: str | None = None
    pod: PodPlace | None = None
    job: str | None = None
    unit: str | None = None
    delegated: bool = False


class Place(NamedTuple):
    """A GPU, or a MIG GPU instance of it."""

    gpu_uuid: str
    gpu_index: int
    gpu_instance_id: int | None = None


class ProcessShare(NamedTuple):
    """What one process uses of one GPU. Exactly one of `owner` and `reason` is set."""

    place: Place
    pid: int
    key: ProcessKey | None
    memory: Portion | None
    sm: Portion | None
    power: Portion | None
    owner: Owner | None
    reason: Reason | None
    workload: Workload
    steps: tuple[str, ...] = ()


class OwnerShare(NamedTuple):
    """What one owner uses of one GPU, over all of its processes there."""

    gpu_uuid: str
    gpu_index: int
    owner: Owner
    processes: int
    memory: Portion | None
    sm: Portion | None
    power: Portion | None


class Unattributed(NamedTuple):
    """What of one GPU has no owner, for one reason. None where that quantity has no such part."""

    gpu_uuid: str
    gpu_index: int
    reason: Reason
    memory_bytes: int | None = None
    sm_millionths: int | None = None
    power_milliwatts: int | None = None


class GpuAccount(NamedTuple):
    """What the driver told of one GPU, and how far the parts are from it: 0, unless this code is wrong.

    A total is None where the driver did not tell it; then there is nothing that the parts must sum to.
    """

    gpu_uuid: str
    gpu_index: int
    memory_used_bytes: int | None
    sm_millionths: int | None
    power_milliwatts: int | None
    memory_error_bytes: int = 0
    sm_error_millionths: int = 0
    power_error_milliwatts: int = 0


@dataclass(frozen=True, slots=True)
class Attribution:
    """The whole account of one GPU reading. `view` says whose processes could be seen at all."""

    processes: tuple[ProcessShare, ...]
    owners: tuple[OwnerShare, ...]
    unattributed: tuple[Unattributed, ...]
    accounts: tuple[GpuAccount, ...]
    view: PidView
