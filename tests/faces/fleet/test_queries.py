"""The answer of Prometheus, row by row: as a whole document would give it, whatever its pieces, and bounded."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucommons.faces.fleet.queries import FleetError, Sample, SampleStore, VectorReader

LABELS = ("instance", "uuid")
labels = st.dictionaries(st.sampled_from([*LABELS, "other"]), st.text(max_size=8))
rows = st.lists(
    st.builds(
        lambda metric, value: {"metric": metric, "value": [1.5, value]},
        labels,
        st.sampled_from(["0", "1.25", "1e300", "NaN"]),
    ),
    max_size=6,
)


def answer(result: object, **more: object) -> bytes:
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}, **more}).encode()


def read(data: bytes, pieces: list[int] | None = None, store: SampleStore | None = None) -> list[Sample]:
    reader = VectorReader(LABELS, store)
    begin = 0
    for size in pieces or []:
        reader.feed(data[begin : begin + size])
        begin += size
    reader.feed(data[begin:])
    return reader.end()


@given(result=rows, pieces=st.lists(st.integers(0, 30), max_size=60), spaces=st.booleans())
def test_any_pieces_give_the_samples_of_the_whole(result: list[Any], pieces: list[int], spaces: bool) -> None:
    data = answer(result, warnings=["a, ] and {"])
    if not spaces:
        data = json.dumps(json.loads(data), separators=(",", ":"), ensure_ascii=False).encode()
    expected = [
        Sample(
            {name: row["metric"][name] for name in LABELS if name in row["metric"]},
            None if row["value"][1] == "NaN" else float(row["value"][1]),
        )
        for row in result
    ]
    assert read(data, pieces) == expected


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf"])
def test_a_sample_that_is_not_finite_has_no_value(value: str) -> None:
    assert read(answer([{"metric": {"uuid": "A"}, "value": [1, value]}])) == [Sample({"uuid": "A"}, None)]


@pytest.mark.parametrize(
    "data", [b"", b"null", b"[]", b"{}", b"<html>", answer(5), answer([{"metric": {}}])[:-4], answer("x" * 200_000)]
)
def test_an_answer_that_is_not_a_vector_is_one_line(data: bytes) -> None:
    with pytest.raises(FleetError, match="not a vector"):
        read(data)


def test_rows_that_are_not_series_are_left_out() -> None:
    result: list[object] = [
        {"metric": {"uuid": "b"}, "value": [1, "2"]},
        *({"metric": 5, "value": [1, "2"]}, {"metric": {}, "value": [1]}, {"metric": {}, "value": [1, "x"]}),
        *({"metric": {}, "value": [1, 10**400]}, {"metric": {}, "value": [10**400, "x"]}),
        *({"metric": {}}, None, "x", 7, {"metric": {}, "value": [1, None]}, {"metric": {"uuid": 5}, "value": [1, "7"]}),
    ]
    assert read(answer(result)) == [Sample({"uuid": "b"}, 2.0), Sample({}, 7.0)]


def test_only_the_labels_that_are_needed_are_kept_and_no_long_text() -> None:
    row = {"metric": {"uuid": "u" * 5000, "secret": "s"}, "value": [1, "2"]}
    assert read(answer([row])) == [Sample({"uuid": "u" * 200}, 2.0)]


def test_too_many_series_and_too_much_text_end_the_reading() -> None:
    result = [{"metric": {"uuid": f"{number:0100}"}, "value": [1, "2"]} for number in range(100)]
    assert len(read(answer(result), store=SampleStore(100, 10_000))) == 100
    for store in (SampleStore(99, 10_000), SampleStore(100, 9_999)):
        with pytest.raises(FleetError, match=r"select fewer nodes with fleet\.prometheus_selector"):
            read(answer(result), store=store)


def test_a_row_that_never_ends_is_not_kept() -> None:
    reader = VectorReader(LABELS)
    reader.feed(b'{"data":{"result":[{"metric":{"uuid":"')
    for _ in range(6):
        reader.feed(b"x" * 10_000)
    with pytest.raises(FleetError):
        reader.feed(b"x" * 10_000)
