"""Why a part of a GPU has no owner. Each value is a label value and never changes its meaning."""

from collections.abc import Mapping
from enum import StrEnum


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
