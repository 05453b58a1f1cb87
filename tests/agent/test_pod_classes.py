"""What pods say of themselves reaches the scheduler with the next snapshot: annotations, labels, PriorityClass."""

from collections.abc import Mapping
from typing import cast

import pytest

from gpucommons.agent.sharing.rules import priority_classes
from gpucommons.agent.sharing.sharing import Sharing
from gpucommons.config.load import load
from gpucommons.config.option import ConfigError
from gpucommons.model.snapshot import Readings, Snapshot
from gpucommons.model.words import SharingClass
from gpucommons.model.workloads import Pod, PodReading
from gpucommons.scheduler.policy.quotas import QuotaValues
from gpucommons.scheduler.service.thread import SchedulerThread

BACKGROUND, LATENCY = SharingClass.BACKGROUND, SharingClass.LATENCY


class _Scheduler:
    """Keeps what it is given."""

    reading = None

    def __init__(self) -> None:
        self.annotations: Mapping[tuple[str, str], QuotaValues] = {}

    def set_annotations(self, annotations: Mapping[tuple[str, str], QuotaValues]) -> None:
        self.annotations = annotations


def given(*pods: Pod, table: str = "night=background") -> Mapping[tuple[str, str], QuotaValues]:
    scheduler = _Scheduler()
    sharing = Sharing(
        cast(SchedulerThread, scheduler),
        1.0,
        shares_programs=False,
        share_limit=1,
        priority_classes=priority_classes(table),
    )
    sharing.observe(Snapshot(1, 1.0, 1.0, "node", readings=Readings(pods=PodReading.of(pods))))
    return scheduler.annotations


def test_the_annotation_takes_precedence_over_the_priority_class() -> None:
    says = {"gpucommons.io/class": "latency", "gpucommons.io/core": "40"}
    found = given(
        Pod("1", "a", "ns", priority_class="night"), Pod("2", "b", "ns", priority_class="night", annotations=says)
    )
    assert found["ns", "a"] == QuotaValues(sharing_class=BACKGROUND)
    assert found["ns", "b"] == QuotaValues(core_percent=40, sharing_class=LATENCY)


def test_a_malformed_annotation_does_not_take_the_priority_class_away() -> None:
    pod = Pod("1", "a", "ns", priority_class="night", annotations={"gpucommons.io/class": "best"})
    assert given(pod)["ns", "a"] == QuotaValues(sharing_class=BACKGROUND)


def test_the_table() -> None:
    assert given(Pod("1", "a", "ns", priority_class="other"))["ns", "a"] == QuotaValues()
    assert priority_classes(" night = background,now=latency, ") == {"night": BACKGROUND, "now": LATENCY}
    assert priority_classes("") == {}
    assert priority_classes(load(None, {}, {}).settings.kubernetes.priority_classes) == {"background": BACKGROUND}
    for wrong in ("night", "=batch", "night=best"):
        with pytest.raises(ConfigError, match="PRIORITY_CLASSES"):
            load(None, {"GPUCOMMONS_KUBERNETES_PRIORITY_CLASSES": wrong}, {})
