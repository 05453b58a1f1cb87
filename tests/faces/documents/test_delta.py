"""A delta leads from one document to the next, for any two documents."""

import json

from hypothesis import given
from hypothesis import strategies as st

from gpucommons.faces.documents.delta import apply, delta
from gpucommons.faces.documents.values import Json
from unhurried import unhurried

VALUES: st.SearchStrategy[Json] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=3), inside, max_size=4),
    max_leaves=12,
)
DOCUMENTS = st.dictionaries(st.sampled_from(["a", "b", "c", "__proto__", ""]), VALUES, max_size=5)


@unhurried(100)
@given(DOCUMENTS, DOCUMENTS)
def test_a_delta_leads_from_any_document_to_any_other(before: dict[str, Json], after: dict[str, Json]) -> None:
    changes = delta(before, after)
    over_the_wire = json.loads(json.dumps(changes))
    assert json.dumps(apply(before, over_the_wire), sort_keys=True) == json.dumps(after, sort_keys=True)


@unhurried(100)
@given(DOCUMENTS)
def test_equal_documents_have_an_empty_delta(document: dict[str, Json]) -> None:
    copy = json.loads(json.dumps(document))
    assert delta(document, copy) == {}


def test_a_delta_has_only_the_changes() -> None:
    before: dict[str, Json] = {"gpus": {"GPU-1": {"power_watts": 1.0, "name": "H200"}, "GPU-2": {"power_watts": 2.0}}}
    after: dict[str, Json] = {"gpus": {"GPU-1": {"power_watts": None, "name": "H200"}, "GPU-3": {}}}
    assert delta(before, after) == {"gpus": {"GPU-1": {"power_watts": [None]}, "GPU-3": [{}], "GPU-2": []}}


def test_apply_does_not_change_its_argument() -> None:
    before: dict[str, Json] = {"a": {"b": 1}}
    apply(before, {"a": {"b": [2]}})
    assert before == {"a": {"b": 1}}


def test_values_that_are_equal_only_in_python_differ() -> None:
    before: dict[str, Json] = {"a": {"b": 1}, "c": [1, [0]], "d": 0}
    after: dict[str, Json] = {"a": {"b": True}, "c": [1, [False]], "d": 0.0}
    assert delta(before, after) == {"a": {"b": [True]}, "c": [[1, [False]]], "d": [0.0]}
