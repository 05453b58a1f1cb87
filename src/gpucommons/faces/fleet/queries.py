"""The PromQL of the fleet, and the answer of an instant query as checked values. Pure."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from gpucommons.base.result_rows import BrokenRows, ResultRows

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
PROBLEMS = "gpucommons_problems"
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
    PROBLEMS: ("instance", "kind"),
}
# Of some metrics only a part is read: what no view shows would be the larger part.
_MATCHERS = {MEMORY: 'which=~"total|free"'}
_FILTERS = {QUEUED: " > 0"}
STATE_LABELS = ("instance", "slot", "uuid", "gpu", "gpu_uuid", "profile", "state")
# Of the targets themselves.
TARGET_LABELS = ("instance", "job", "node")

# A node whose series ended within this time is still listed.
REMEMBERED = "1h"
_SPECIAL = re.compile(r"([\\.+*?()|\[\]{}^$])")


def reading_query(metric: str, selector: str) -> str:
    matchers = _join(selector, _MATCHERS.get(metric, ""))
    return f"max by ({', '.join(READINGS[metric])}) ({metric}{{{matchers}}}{_FILTERS.get(metric, '')})"


def states_query(selector: str) -> str:
    """The value is the time of the sample: of two series for one slot, the newer one is in force."""
    return f"max by ({', '.join(STATE_LABELS)}) (timestamp({SLOT_STATE}{{{selector}}}))"


def seen_query(selector: str) -> str:
    """The value is the time of the node's last snapshot."""
    return f"last_over_time({SNAPSHOT_TIME}{{{selector}}}[{REMEMBERED}])"


def down_query(selector: str) -> str:
    return f"up{{{selector}}} == 0"


def remembered_query(metric: str, selector: str, instances: Iterable[str]) -> str:
    """The series that nodes had before they stopped answering."""
    matching = "|".join(_quote(instance) for instance in instances)
    matchers = _join(selector, f'instance=~"{matching}"')
    return f"last_over_time({metric}{{{matchers}}}[{REMEMBERED}])"


def _join(*matchers: str) -> str:
    return ",".join(filter(None, matchers))


def _quote(instance: str) -> str:
    """For a regular expression inside a string of PromQL."""
    expression = _SPECIAL.sub(r"\\\1", instance)
    return expression.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


# The answer of an instant query of Prometheus as values, row by row as its bytes come. Pure; every field is checked.
#
# All answers of one reading together have one limit, far above what 1,000 nodes with 8 GPUs need.

_LONGEST_TEXT = 200
_LONGEST_ROW = 64 * 1024


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


class SampleStore:
    """What the answers of one reading may take together. Equal texts of all answers are one object."""

    def __init__(self, max_samples: int = 100_000, max_text: int = 4_000_000) -> None:
        self._samples_left = max_samples
        self._text_left = max_text
        self.texts: dict[str, str] = {}

    def keep(self, text: str) -> str:
        """For a text that `texts` does not have."""
        text = text[:_LONGEST_TEXT]
        self._text_left -= len(text)
        return self.texts.setdefault(text, text)

    def count_sample(self) -> None:
        self._samples_left -= 1
        if self._samples_left < 0 or self._text_left < 0:
            raise FleetError(
                "Prometheus has more series than one page can show; select fewer nodes with fleet.prometheus_selector"
            )


class VectorReader:
    """The samples of one answer, of which the given labels are kept. `feed` its bytes, then `end`."""

    def __init__(self, labels: Iterable[str], store: SampleStore | None = None) -> None:
        self._labels = tuple(labels)
        self._store = store or SampleStore()
        self._rows = ResultRows(_LONGEST_ROW)
        self._samples: list[Sample] = []

    def feed(self, data: bytes) -> None:
        """Raises FleetError for what is not a vector, or is too long."""
        try:
            rows = self._rows.feed(data)
        except BrokenRows:
            raise _not_a_vector() from None
        for row in rows:
            if (sample := self._sample(row)) is not None:
                self._store.count_sample()
                self._samples.append(sample)

    def end(self) -> list[Sample]:
        try:
            self._rows.end()
        except BrokenRows:
            raise _not_a_vector() from None
        return self._samples

    def _sample(self, row: object) -> Sample | None:
        """None for a row that is not a series: it is left out."""
        metric, pair = (row.get("metric"), row.get("value")) if isinstance(row, dict) else (None, None)
        if not isinstance(metric, dict) or not isinstance(pair, list) or len(pair) != 2:
            return None
        try:
            value = float(pair[1])
        except (TypeError, ValueError, OverflowError):
            return None
        labels = {}
        texts = self._store.texts
        for name in self._labels:
            text = metric.get(name)
            if isinstance(text, str):
                labels[name] = texts.get(text) or self._store.keep(text)
        return Sample(labels, value if math.isfinite(value) else None)


def _not_a_vector() -> FleetError:
    return FleetError("Prometheus sent an answer that is not a vector; check fleet.prometheus_url")


class FleetAnswers(NamedTuple):
    """The samples of each query; `readings` by metric.

    `selected`: a selector chooses the nodes, so every target that is down is one.
    """

    time_wall_s: float
    readings: Mapping[str, Sequence[Sample]] = {}
    states: Sequence[Sample] = ()
    seen: Sequence[Sample] = ()
    down: Sequence[Sample] = ()
    remembered_states: Sequence[Sample] = ()
    remembered_gpus: Sequence[Sample] = ()
    selected: bool = False

    def of(self, metric: str) -> Sequence[Sample]:
        return self.readings.get(metric, ())
