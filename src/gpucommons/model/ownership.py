"""What each owner uses of each GPU at an instant, and what has no owner. Integers, so that sums are exact.

The rows are NamedTuples, not dataclasses: every pass creates one for each process on each GPU.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from operator import itemgetter
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
    Reason.PID_NAMESPACE: "used by a process in another pid namespace, which the agent cannot see",
    Reason.PROCESS_GONE: "used by a process that ended before it was read",
    Reason.PROCESS_UNREADABLE: "used by a process that the agent may not read",
    Reason.NO_OWNER: "used by a process that no owner rule matches",
    Reason.NO_MEMORY_READING: "the driver does not report the memory of each process on this GPU",
    Reason.NO_UTILIZATION_SAMPLE: "the GPU was busy, but the driver sampled no process",
    Reason.DRIVER_RESERVED: "reserved by the driver, not used by a process",
    Reason.NOT_VISIBLE: "the driver lists no process for it; processes outside the agent's pid namespace are hidden",
    Reason.NO_PROCESS: "used while no process was on the GPU",
    Reason.NO_PROCESS_LIST: "the driver did not list the processes on this GPU",
    Reason.ROUNDING: "remainder of the division into integers",
}


class Basis(StrEnum):
    """MEASURED: the driver reported it for this process. APPORTIONED: a share of what it reported for the GPU."""

    MEASURED = "measured"
    APPORTIONED = "apportioned"


# The unit of SM time is a millionth of it.
WHOLE_SM = 1_000_000


class Portion(NamedTuple):
    """A part of a GPU: bytes of memory, millionths of its SM time, or milliwatts."""

    amount: int
    basis: Basis


def sum_portions(parts: Iterable[Portion | None]) -> Portion | None:
    """The sum of what is known; None if nothing is. Measured only if all of it is."""
    # Not by a comprehension, which takes longer: there may be tens of thousands. A portion is never false.
    known_parts = list(filter(None, parts))
    if not known_parts:
        return None
    basis = Basis.APPORTIONED if Basis.APPORTIONED in map(_basis, known_parts) else Basis.MEASURED
    return Portion(sum(map(_amount, known_parts)), basis)


_amount: Callable[[Portion], int] = itemgetter(0)
_basis: Callable[[Portion], Basis] = itemgetter(1)


class OwnerKind(StrEnum):
    SITE = "site"
    POD = "pod"
    LABEL = "label"
    JOB = "job"
    UNIT = "unit"
    USER = "user"


class Owner(NamedTuple):
    """`id` is stable within its kind (pod UID, uid, job id); names may change."""

    kind: OwnerKind
    id: str
    name: str
    namespace: str = ""


class PodPlace(NamedTuple):
    """The pod that a process runs in. `name` is empty where only its UID is known."""

    uid: str
    name: str = ""
    namespace: str = ""
    container: str = ""


@dataclass(frozen=True, slots=True)
class Workload:
    """What a process belongs to, before any rule names its owner. None is unknown.

    `delegated`: its cgroup is in a tree that user `uid` may write: container, job and unit are claims of that user.
    `namespace_owner` is set where it is in another user namespace, by the maker of that: `uid:1000`, `userns:ID`.
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
    namespace_owner: str | None = None


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
    """The part of one GPU that has no owner, for one reason. None where a quantity has no such part."""

    gpu_uuid: str
    gpu_index: int
    reason: Reason
    memory_bytes: int | None = None
    sm_millionths: int | None = None
    power_milliwatts: int | None = None


class GpuAccount(NamedTuple):
    """What the driver reported for one GPU, and the error of the parts' sum: 0, unless this code is wrong.

    A total is None where the driver did not report it; then no sum is checked.
    """

    gpu_uuid: str
    gpu_index: int
    memory_used_bytes: int | None
    sm_millionths: int | None
    power_milliwatts: int | None
    memory_error_bytes: int = 0
    sm_error_millionths: int = 0
    power_error_milliwatts: int = 0


class Attribution(NamedTuple):
    """The attribution of one GPU reading. `view` says which processes are visible to the agent."""

    processes: tuple[ProcessShare, ...]
    owners: tuple[OwnerShare, ...]
    unattributed: tuple[Unattributed, ...]
    accounts: tuple[GpuAccount, ...]
    view: PidView
