"""Any labels and any numbers survive our renderer and prometheus_client's parsers."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucommons.faces.exposition.families import (
    Family,
    HistogramPoint,
    Metric,
    SummaryPoint,
    counter,
    gauge,
    histogram,
    summary,
)
from gpucommons.faces.exposition.text import (
    FamilyRenderer,
    bounded_name,
    escape_value,
    openmetrics_head,
    prometheus_head,
)
from parsing import parsed, same

X = gauge("x_bytes", "Some bytes.", "pid", "name")
label = st.text(st.characters(exclude_categories=["Cs"]))
value = st.one_of(st.floats(), st.integers(-(2**63), 2**63))
points = st.dictionaries(st.tuples(label, label), value, max_size=12)


def page(metric: Metric, lines: str, openmetrics: bool) -> str:
    head = openmetrics_head if openmetrics else prometheus_head
    return head(metric) + lines + ("# EOF\n" if openmetrics else "")


@pytest.mark.parametrize("openmetrics", [False, True])
@given(series=points)
def test_round_trip(openmetrics: bool, series: dict[tuple[str, str], float]) -> None:
    rendered = FamilyRenderer(X).render(X.of(series.items()))
    assert rendered.duplicates == 0
    found = parsed(page(X, str(rendered.lines, "utf-8"), openmetrics), openmetrics)
    assert len(found) == len(series)
    for (pid, name), number in series.items():
        assert same(found["x_bytes", (("name", bounded_name(name)), ("pid", bounded_name(pid)))], float(number))


@given(st.lists(st.tuples(points, st.integers(1, 3))))
def test_a_warm_cache_renders_as_a_cold_one(passes: list[tuple[dict[tuple[str, str], float], int]]) -> None:
    warm = FamilyRenderer(X)
    for series, repetitions in passes:
        for _ in range(repetitions):
            family = X.of(series.items())
            assert warm.render(family) == FamilyRenderer(X).render(family)


def test_prefixes_of_ended_series_are_dropped() -> None:
    renderer = FamilyRenderer(X)
    for generation in range(20):
        renderer.render(X.of(((str(generation * 100 + i), "p"), 1) for i in range(100)))
    assert len(renderer._prefixes) == 100


@pytest.mark.parametrize(
    "bad",
    ["a\nb", 'a"b', "a\\b", "a\\nb", "\udcff", "a\udc80b", "\x00", "\r", "\u2028", "名前", "}", '",x="'],
    ids=ascii,
)
def test_hostile_names_stay_one_series(bad: str) -> None:
    rendered = FamilyRenderer(X).render(X.of([(("1", bad), 1.0), (("2", "ok"), 2.0)]))
    text = page(X, str(rendered.lines, "utf-8"), openmetrics=False)
    assert len(text.split("\n")) == 5
    text.encode("utf-8")
    assert len(parsed(text)) == 2


def test_names_that_escape_alike_are_one_series_and_counted() -> None:
    rendered = FamilyRenderer(X).render(X.of([(("1", "\udc80"), 1), (("1", "\udc81"), 2), (("1", "z"), 3)]))
    assert rendered.duplicates == 1
    assert sorted(parsed(page(X, str(rendered.lines, "utf-8"), False)).values()) == [1, 3]


def test_of_duplicates_the_first_is_served_in_its_place() -> None:
    family = X.of([(("1", "a"), 1), (("2", "b"), 2), (("1", "a"), 9)])
    rendered = FamilyRenderer(X).render(family)
    assert rendered.lines == b'x_bytes{pid="1",name="a"} 1\nx_bytes{pid="2",name="b"} 2\n'
    assert rendered.duplicates == 1


def test_a_family_of_many_series_is_rendered_whole_and_duplicates_are_found_anywhere() -> None:
    count = 10_000
    points = [((str(number), "p"), number) for number in range(count)]
    rendered = FamilyRenderer(X).render(X.of([*points, points[0], points[-1]]))
    assert rendered.duplicates == 2
    expected = "".join(f'x_bytes{{pid="{number}",name="p"}} {number}\n' for number in range(count))
    assert str(rendered.lines, "utf-8") == expected


def test_an_unchanged_family_keeps_its_bytes() -> None:
    renderer = FamilyRenderer(X)
    points = [(("1", "a"), 1.5), (("2", "b"), 2.5)]
    first = renderer.render(X.of(points))
    before = renderer.render(X.of(list(points)))
    assert before == first
    assert renderer.render(X.of(list(points))).lines is before.lines
    changed = renderer.render(X.of([points[0], (("2", "b"), 3.5)]))
    assert changed.lines == b'x_bytes{pid="1",name="a"} 1.5\nx_bytes{pid="2",name="b"} 3.5\n'
    renamed = renderer.render(X.of([points[0], (("2", "c"), 3.5)]))
    assert renamed.lines == b'x_bytes{pid="1",name="a"} 1.5\nx_bytes{pid="2",name="c"} 3.5\n'


def test_special_numbers() -> None:
    lines = FamilyRenderer(X).render(
        X.of([(("1", ""), math.nan), (("2", ""), math.inf), (("3", ""), -math.inf), (("4", ""), True)])
    )
    assert [line.split()[-1] for line in str(lines.lines, "utf-8").splitlines()] == ["NaN", "+Inf", "-Inf", "1"]


def test_optional_labels_are_left_out_when_empty() -> None:
    metric = gauge("y", "Y.", "gpu", "pod", optional=["pod"])
    lines = str(FamilyRenderer(metric).render(metric.of([(("", ""), 1), (("0", "p"), 2)])).lines, "utf-8")
    assert lines == 'y{gpu=""} 1\ny{gpu="0",pod="p"} 2\n'


def test_a_wrong_number_of_labels_is_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        FamilyRenderer(X).render(X.of([(("only one",), 1.0)]))


@pytest.mark.parametrize("openmetrics", [False, True])
@given(
    counts=st.lists(st.integers(0, 1000), min_size=4, max_size=4),
    total=st.floats(0, 1e9),
    pod=label,
)
def test_histograms(openmetrics: bool, counts: list[int], total: float, pod: str) -> None:
    metric = histogram("wait_seconds", "Wait.", "pod", buckets=(0.1, 1, 10))
    cumulative = tuple(sum(counts[: i + 1]) for i in range(4))
    rendered = FamilyRenderer(metric).render(metric.histogram([HistogramPoint((pod,), cumulative, total)]))
    found = parsed(page(metric, str(rendered.lines, "utf-8"), openmetrics), openmetrics)
    pod = bounded_name(pod)
    for bound, count in zip(("0.1", "1.0", "10.0", "+Inf"), cumulative, strict=True):
        assert found["wait_seconds_bucket", (("le", bound), ("pod", pod))] == count
    assert found["wait_seconds_count", (("pod", pod),)] == cumulative[-1]
    assert found["wait_seconds_sum", (("pod", pod),)] == total


def test_a_duplicate_histogram_is_served_once() -> None:
    metric = histogram("wait_seconds", "Wait.", buckets=(1,))
    point = HistogramPoint((), (1, 2), 3.0)
    assert FamilyRenderer(metric).render(metric.histogram([point, point])).duplicates == 1


@pytest.mark.parametrize("openmetrics", [False, True])
@given(median=st.floats(0, 1e9), total=st.floats(0, 1e9), count=st.integers(0, 10**12), pod=label)
def test_summaries(openmetrics: bool, median: float, total: float, count: int, pod: str) -> None:
    metric = summary("latency", "Latency.", "pod")
    point = SummaryPoint((pod,), ((0.5, median), (0.99, math.nan)), total, count)
    rendered = FamilyRenderer(metric).render(metric.summary([point, point]))
    assert rendered.duplicates == 1
    found = parsed(page(metric, str(rendered.lines, "utf-8"), openmetrics), openmetrics)
    pod = bounded_name(pod)
    assert found["latency", (("pod", pod), ("quantile", "0.5"))] == median
    assert math.isnan(found["latency", (("pod", pod), ("quantile", "0.99"))])
    assert found["latency_sum", (("pod", pod),)] == total
    assert found["latency_count", (("pod", pod),)] == count


def test_openmetrics_types() -> None:
    assert "# TYPE done counter" in openmetrics_head(counter("done_total", "Done."))
    assert "# TYPE ENERGY unknown" in openmetrics_head(counter("ENERGY", "A name that cannot be changed."))


def test_help_is_escaped() -> None:
    assert prometheus_head(gauge("a", "one\ntwo\\")) == "# HELP a one\\ntwo\\\\\n# TYPE a gauge\n"


@given(st.text())
def test_escaping_never_breaks_the_line(text: str) -> None:
    escaped = escape_value(text)
    assert "\n" not in escaped
    escaped.encode("utf-8")


@given(st.text(min_size=1), st.text(), st.text())
def test_long_names_are_bounded_and_stay_distinct(beginning: str, one: str, other: str) -> None:
    long = beginning * 65
    names = {long + one, long + other}
    shown = {bounded_name(name) for name in names}
    assert len(shown) == len(names)
    assert all(len(name.encode("utf-8", "surrogatepass")) <= 64 for name in shown)
    assert all(name.startswith(bounded_name(long)[:8]) for name in shown)


@pytest.mark.parametrize("name", ["", "é" * 32, "GPU-4b1c8b7e-58a2-8c1e-7b0c-0123456789ab", "0123456789abcdef" * 4])
def test_short_names_uuids_and_container_ids_are_not_cut(name: str) -> None:
    assert bounded_name(name) == name


def test_a_long_name_is_bounded_in_every_sample_unless_the_dialect_keeps_it() -> None:
    family = X.of([(("1", "n" * 300), 1)])
    assert len(FamilyRenderer(X).render(family).lines) < 120
    assert b"n" * 300 in FamilyRenderer(X, bounds_names=False).render(family).lines
    waits = histogram("wait_seconds", "Wait.", "pod", buckets=(1,))
    lines = FamilyRenderer(waits).render(waits.histogram([HistogramPoint(("n" * 300,), (1, 2), 3.0)])).lines
    assert len(lines) < 4 * 120


def test_an_empty_family_has_no_lines() -> None:
    assert FamilyRenderer(X).render(Family(X, [])).lines == b""
