"""The PromQL of the fleet, and the answer of an instant query as checked values. Pure."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

# The PromQL of the fleet: what is read of all nodes, and of those that no longer answer. Pure.

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


# The answer of an instant query of Prometheus as values. Pure; every field is checked.

_LONGEST_TEXT = 200


class FleetError(Exception):
    """One line for the viewer: why there is no view of the fleet."""


class Sample(NamedTuple):
    """One series at one instant. `value` is None where it is not a finite number."""

    labels: Mapping[str, str]
    value: float | None

    @property
    def instance(self) -> str:
        """The target that it was scraped from; empty where the label is missing."""
        return self.labels.get("instance", "")


def samples(answer: object) -> list[Sample]:
    """A row that is not a series is left out. Raises FleetError for an answer that is not a vector."""
    data = answer.get("data") if isinstance(answer, dict) else None
    rows = data.get("result") if isinstance(data, dict) else None
    if not isinstance(rows, list):
        raise FleetError("Prometheus sent an answer that is not a vector; check fleet.prometheus_url")
    return [found for row in rows if (found := _sample(row)) is not None]


def _sample(row: object) -> Sample | None:
    metric, pair = (row.get("metric"), row.get("value")) if isinstance(row, dict) else (None, None)
    if not isinstance(metric, dict) or not isinstance(pair, list) or len(pair) != 2:
        return None
    labels = {str(name): text[:_LONGEST_TEXT] for name, text in metric.items() if isinstance(text, str)}
    try:
        value = float(pair[1])
    except (TypeError, ValueError):
        return None
    return Sample(labels, value if math.isfinite(value) else None)


@dataclass(frozen=True, slots=True)
class FleetAnswers:
    """The samples of each query; `readings` by metric.

    `selected`: a selector chooses the nodes, so every target that is down is one.
    """

    time_wall_s: float
    readings: Mapping[str, Sequence[Sample]] = field(default_factory=dict)
    states: Sequence[Sample] = ()
    seen: Sequence[Sample] = ()
    down: Sequence[Sample] = ()
    remembered_states: Sequence[Sample] = ()
    remembered_gpus: Sequence[Sample] = ()
    selected: bool = False

    def of(self, metric: str) -> Sequence[Sample]:
        return self.readings.get(metric, ())
