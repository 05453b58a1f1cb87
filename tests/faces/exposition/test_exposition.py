"""Rendered once per snapshot; a dialect that fails loses only its own families."""

import gzip
import logging
from collections.abc import Iterator
from functools import partial
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucommons.faces.dialects.dialect import Dialect
from gpucommons.faces.exposition.exposition import OPENMETRICS_CONTENT_TYPE, TEXT_CONTENT_TYPE, Exposition
from gpucommons.faces.exposition.families import Family, Metric, counter, gauge
from gpucommons.model.snapshot import Snapshot
from parsing import parsed

A = gauge("a_ratio", "A.", "x")
B = counter("b_total", "B.")
C = gauge("c_ratio", "C.", "x")


class Node:
    """A replaceable snapshot, and the number of times that a dialect was collected."""

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = Snapshot(0, 0.0, 0.0, "host")
        self.collected = 0
        self.broken = False

    def collect_a(self, snapshot: Snapshot) -> Iterator[Family]:
        self.collected += 1
        yield A.of([(("1",), 0.5), (("2",), 0.7)])
        if self.broken:
            raise RuntimeError("garbage in the snapshot")

    def collect_b(self, snapshot: Snapshot) -> Iterator[Family]:
        yield B.value(snapshot.sequence)

    def exposition(self) -> Exposition:
        dialects = [
            Dialect("a", 1, "", (A,), self.collect_a),
            Dialect("b", 2, "", (B,), self.collect_b),
        ]
        return Exposition(lambda: self.snapshot, dialects)


def body(exposition: Exposition, dialect: str | None = None, openmetrics: bool = False) -> str:
    return exposition.metrics(dialect, openmetrics, gzip=False)[0].decode()


def test_a_dialect_that_is_not_on_the_main_page_is_served_by_name_only() -> None:
    node = Node()
    dialects = [
        Dialect("a", 1, "", (A,), node.collect_a, on_main=False),
        Dialect("b", 2, "", (B,), node.collect_b),
    ]
    exposition = Exposition(lambda: node.snapshot, dialects)
    assert set(parsed(body(exposition))) == {("b_total", ())}
    assert node.collected == 0, "the main page does not collect it"
    assert len(parsed(body(exposition, "a"))) == 2


def test_all_dialects_or_one() -> None:
    exposition = Node().exposition()
    assert set(parsed(body(exposition))) == {
        ("a_ratio", (("x", "1"),)),
        ("a_ratio", (("x", "2"),)),
        ("b_total", ()),
    }
    assert set(parsed(body(exposition, "b"))) == {("b_total", ())}
    with pytest.raises(LookupError):
        exposition.metrics("unknown", False, False)


def test_parts_of_one_family_are_joined() -> None:
    def collect(snapshot: Snapshot) -> Iterator[Family]:
        yield A.value(0.5, "1")
        yield B.value(snapshot.sequence)
        yield A.value(0.7, "2")

    snapshot = Snapshot(3, 0.0, 0.0, "host")
    exposition = Exposition(lambda: snapshot, [Dialect("parts", 1, "", (A, B), collect)])
    assert parsed(body(exposition)) == {
        ("a_ratio", (("x", "1"),)): 0.5,
        ("a_ratio", (("x", "2"),)): 0.7,
        ("b_total", ()): 3,
    }
    assert body(exposition).count("# TYPE a_ratio") == 1


def test_collected_once_for_all_formats_and_encodings() -> None:
    node = Node()
    exposition = node.exposition()
    for _ in range(3):
        for dialect in (None, "a"):
            for openmetrics in (False, True):
                for compressed in (False, True):
                    exposition.metrics(dialect, openmetrics, compressed)
    assert node.collected == 1
    first = exposition.metrics(None, False, True)[0]
    assert exposition.metrics(None, False, True)[0] is first


names = st.sampled_from([f"{letter * 60}{number}" for letter in "ab" for number in range(4)])
values = st.dictionaries(names, st.integers(0, 2))


@given(st.lists(st.tuples(values, values), min_size=1, max_size=5))
@settings(max_examples=6)
def test_bodies_equal_those_of_a_new_exposition_after_any_changes(passes: list[tuple[dict[str, int], ...]]) -> None:
    """In any format and order, with families that are large enough to share the memory of a body."""
    node = Node()

    def collect(metric: Metric, part: int, snapshot: Snapshot) -> Iterator[Family]:
        series = passes[snapshot.sequence][part]
        yield metric.of(((f"{name}-{number}",), value) for name, value in series.items() for number in range(300))

    dialects = [Dialect("a", 1, "", (A,), partial(collect, A, 0)), Dialect("c", 2, "", (C,), partial(collect, C, 1))]
    kept = Exposition(lambda: node.snapshot, dialects)
    for sequence in range(len(passes)):
        node.snapshot = Snapshot(sequence, 0.0, 0.0, "host", "lab" if sequence % 2 else None)
        for dialect, openmetrics, compressed in product((None, "a", "c"), (False, True), (True, False)):
            expected = Exposition(lambda: node.snapshot, dialects).metrics(dialect, openmetrics, compressed)
            assert kept.metrics(dialect, openmetrics, compressed) == expected


def test_a_new_snapshot_is_collected_again() -> None:
    node = Node()
    exposition = node.exposition()
    assert parsed(body(exposition))["b_total", ()] == 0
    node.snapshot = Snapshot(7, 0.0, 0.0, "host")
    assert parsed(body(exposition))["b_total", ()] == 7


def test_content_types_and_gzip() -> None:
    exposition = Node().exposition()
    plain, text_type = exposition.metrics(None, False, False)
    packed, _ = exposition.metrics(None, False, True)
    openmetrics, openmetrics_type = exposition.metrics(None, True, False)
    assert gzip.decompress(packed) == plain
    assert text_type == TEXT_CONTENT_TYPE == "text/plain; version=0.0.4; charset=utf-8"
    assert openmetrics_type == OPENMETRICS_CONTENT_TYPE
    assert openmetrics.endswith(b"# EOF\n")
    assert parsed(openmetrics.decode(), openmetrics=True) == parsed(plain.decode())


def test_a_failing_dialect_loses_only_its_own_families(caplog: pytest.LogCaptureFixture) -> None:
    node = Node()
    exposition = node.exposition()
    node.broken = True
    with caplog.at_level(logging.ERROR):
        assert set(parsed(body(exposition))) == {("b_total", ())}
        node.snapshot = Snapshot(1, 0.0, 0.0, "host")
        body(exposition)
    assert exposition.failures == {"a": 2, "b": 0}
    assert len(caplog.records) == 1, "one line when it starts to fail, not one per snapshot"
    node.broken = False
    node.snapshot = Snapshot(2, 0.0, 0.0, "host")
    assert len(parsed(body(exposition))) == 3


def test_duplicates_are_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    snapshot = Snapshot(0, 0.0, 0.0, "host")

    def twice(_: Snapshot) -> Iterator[Family]:
        yield A.of([(("1",), 1.0), (("1",), 2.0)])

    exposition = Exposition(lambda: snapshot, [Dialect("a", 1, "", (A,), twice)])
    assert parsed(body(exposition)) == {("a_ratio", (("x", "1"),)): 1.0}
    assert exposition.duplicates == {"a": 1}
    assert len(caplog.records) == 1


def test_before_the_first_snapshot_there_is_an_empty_page() -> None:
    node = Node()
    node.snapshot = None
    assert body(node.exposition()) == ""
    assert body(node.exposition(), openmetrics=True) == "# EOF\n"


def test_a_simulated_page_is_marked() -> None:
    node = Node()
    node.snapshot = Snapshot(0, 0.0, 0.0, "host", scenario="lab")
    assert body(node.exposition(), "b").startswith("# SIMULATED: scenario lab")
    parsed(body(node.exposition(), "b", openmetrics=True), openmetrics=True)
