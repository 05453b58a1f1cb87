"""The answer of an instant query of Prometheus as values. Pure; every field is checked."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

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
