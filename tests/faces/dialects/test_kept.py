"""Clients that did not change keep their families and their bytes; any change is served."""

from typing import Any

import pytest

from faces.dialects.test_crowd import client, reading
from gpucommons.faces.dialects.dialect import MetricModule
from gpucommons.faces.dialects.gpucommons import sharing as own
from gpucommons.faces.dialects.nvshare import clients as nvshare
from gpucommons.faces.dialects.series import KeptFamilies
from gpucommons.faces.exposition.families import Family, gauge
from gpucommons.faces.exposition.text import FamilyRenderer
from gpucommons.model.sharing import ClientSharing, SharingReading
from gpucommons.model.snapshot import Readings, Snapshot

NUMBER = gauge("a_number", "A number.")


def test_rows_that_are_equal_are_not_made_again() -> None:
    calls: list[int] = []

    def make(number: int, other: int) -> list[Family]:
        calls.append(number)
        return [NUMBER.value(number + other)]

    kept = KeptFamilies(make)
    first = kept(1000, 1)
    assert kept(1000, 1) is first
    assert kept(1000, 2) != first
    assert kept(1000, 1) == first
    assert len(calls) == 3


def of_clients(part: MetricModule, sharing: SharingReading, name: str) -> Family:
    snapshot = Snapshot(1, 0.0, 0.0, "host", readings=Readings(sharing=sharing))
    return next(family for family in part.collect(snapshot) if family.metric.name == name)


def rows() -> tuple[ClientSharing, ...]:
    return tuple(client(number, 1000) for number in range(20))


@pytest.mark.parametrize("debug_labels", [True, False])
@pytest.mark.parametrize(
    ("part", "name", "change"),
    [
        (nvshare, "nvshare_client_memory_quota_bytes", {"memory_quota_bytes": 5}),
        (own, "gpucommons_sharing_client_billed_seconds_total", {"billed_s": 5.0}),
    ],
    ids=["nvshare", "gpucommons"],
)
def test_a_client_that_changes_is_served(
    part: MetricModule, name: str, change: dict[str, Any], debug_labels: bool
) -> None:
    sharing = reading(list(rows()), debug_labels)
    family = of_clients(part, sharing, name)
    renderer = FamilyRenderer(family.metric)
    before = [bytes(renderer.render(family).lines) for _ in range(3)]
    assert of_clients(part, sharing._replace(clients=rows()), name) is family
    *others, last = rows()
    changed = of_clients(part, sharing._replace(clients=(*others, last._replace(**change))), name)
    after = bytes(renderer.render(changed).lines)
    assert before[0] == before[1] == before[2] != after
    assert [value for _, value in changed.points].count(5) == 1
    assert bytes(FamilyRenderer(family.metric).render(changed).lines) == after


def test_departed_clients_are_compared_as_well() -> None:
    sharing = reading(list(rows()), True)
    name = "nvshare_client_info"
    before = of_clients(nvshare, sharing, name)
    after = of_clients(nvshare, sharing._replace(departed=(client(77, 1000),)), name)
    assert len(after.points) == len(before.points) + 1


@pytest.mark.parametrize(("series", "kept"), [(500, True), (20_000, False)])
def test_the_bytes_of_the_largest_families_are_not_kept(series: int, kept: bool) -> None:
    """They would take the memory of a second body."""
    metric = gauge("a_long_enough_name", "A number.", "series")
    renderer = FamilyRenderer(metric)
    first, second, third = (
        renderer.render(metric.of(((str(number),), number) for number in range(series))) for _ in range(3)
    )
    assert (second is third) == kept
    assert first.lines == second.lines == third.lines
