"""The PromQL of the fleet: what is read of all nodes, and of those that no longer answer. Pure."""

import re
from collections.abc import Iterable, Mapping

SNAPSHOT_TIME = "gpucommons_snapshot_timestamp_seconds"
SIMULATED = "gpucommons_simulated"
GPU_INFO = "gpucommons_gpu_info"
SLOT_STATE = "gpucommons_slot_state"
HOLDER = "gpucommons_slot_holder_share_ratio"
SINCE = "gpucommons_slot_since_timestamp_seconds"
IDLE = "gpucommons_slot_idle_seconds"
UTILIZATION = "gpucommons_slot_utilization_ratio"
MEMORY = "gpucommons_slot_memory_bytes"
QUEUED = "gpucommons_sharing_queued_clients"
LEASES_WAITING = "gpucommons_leases_waiting"
# What is read, with the labels that are needed: others would make the answers of a large fleet several times as long.
READINGS: Mapping[str, tuple[str, ...]] = {
    SNAPSHOT_TIME: ("instance",),
    SIMULATED: ("instance", "scenario"),
    GPU_INFO: ("instance", "uuid", "gpu", "name"),
    HOLDER: ("instance", "uuid", "holder"),
    SINCE: ("instance", "uuid"),
    IDLE: ("instance", "uuid"),
    UTILIZATION: ("instance", "uuid"),
    MEMORY: ("instance", "uuid", "which"),
    QUEUED: ("instance", "uuid", "queue"),
    LEASES_WAITING: ("instance", "user"),
}
_STATE_LABELS = "instance, slot, uuid, gpu, gpu_uuid, profile, state"

# A node whose series ended within this time is still listed.
REMEMBERED = "1h"
_SPECIAL = re.compile(r"([\\.+*?()|\[\]{}^$])")


def reading_query(metric: str, selector: str) -> str:
    return f"max by ({', '.join(READINGS[metric])}) ({metric}{{{selector}}})"


def states_query(selector: str) -> str:
    """The value is the time of the sample: of two series for one slot, the newer one is in force."""
    return f"max by ({_STATE_LABELS}) (timestamp({SLOT_STATE}{{{selector}}}))"


def seen_query(selector: str) -> str:
    """The value is the time of the node's last snapshot."""
    return f"last_over_time({SNAPSHOT_TIME}{{{selector}}}[{REMEMBERED}])"


def down_query(selector: str) -> str:
    return f"up{{{selector}}} == 0"


def remembered_query(metric: str, selector: str, instances: Iterable[str]) -> str:
    """The series that nodes had before they stopped answering."""
    matching = "|".join(_quoted(instance) for instance in instances)
    matchers = _joined(selector, f'instance=~"{matching}"')
    return f"last_over_time({metric}{{{matchers}}}[{REMEMBERED}])"


def _joined(*matchers: str) -> str:
    return ",".join(filter(None, matchers))


def _quoted(instance: str) -> str:
    """For a regular expression inside a string of PromQL."""
    expression = _SPECIAL.sub(r"\\\1", instance)
    return expression.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
