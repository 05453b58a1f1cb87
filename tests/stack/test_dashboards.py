"""The dashboards are up to date, fit Grafana's schema, and query only metrics that are served."""

import json
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards.__main__ import BOARDS, to_json
from stack.promql import DASHBOARDS, PanelQuery, dashboards, metric_names, panel_queries, panels
from stack.test_rules import known_names

CHOSEN = {"node": ".*", "gpu": ".*", "user": "alice"}


@pytest.mark.parametrize("name", BOARDS)
def test_committed_dashboards_are_current(name: str) -> None:
    assert (DASHBOARDS / f"{name}.json").read_text() == to_json(BOARDS[name]), "run: make dashboards"


def test_no_other_dashboard_is_shipped() -> None:
    assert set(dashboards()) == set(BOARDS)


@pytest.mark.parametrize("name", BOARDS)
def test_it_fits_grafanas_schema(name: str) -> None:
    """Grafana's types parse it and produce the same JSON, so that no field is unknown or has a wrong type."""
    register_default_plugins()
    committed = dashboards()[name]
    read = Dashboard.from_json(committed)
    assert json.loads(json.dumps(read, cls=JSONEncoder)) == committed


def test_dashboards_have_their_known_addresses() -> None:
    uids = {dashboard["uid"]: dashboard["title"] for dashboard in dashboards().values()}
    assert uids.keys() >= {"ds01-overview", "ds01-user", "nvidia-dcgm"}


def test_queries_use_only_served_metrics() -> None:
    known = known_names()
    queries = panel_queries()
    assert queries
    unknown = {
        query[:2]: missing for query in queries if (missing := metric_names(query.with_values(**CHOSEN)) - known)
    }
    assert unknown == {}


@pytest.mark.parametrize("name", BOARDS)
def test_variables_come_from_labels_that_are_served(name: str) -> None:
    for variable in dashboards()[name]["templating"]["list"]:
        if variable["type"] == "query":
            selector = variable["query"].removeprefix("label_values(").rpartition(",")[0]
            assert metric_names(PanelQuery("", "", selector).with_values(**CHOSEN)) <= known_names()


@pytest.mark.parametrize("name", BOARDS)
def test_panels_have_titles_texts_units_and_do_not_overlap(name: str) -> None:
    taken: dict[tuple[int, int], str] = {}
    ids = [panel["id"] for panel in dashboards()[name]["panels"]]
    assert len(ids) == len(set(ids))
    for panel in panels(dashboards()[name]):
        assert panel["title"]
        assert panel["description"]
        assert panel["targets"]
        for cell in _cells(panel["gridPos"]):
            assert cell not in taken, f"{panel['title']} overlaps {taken.get(cell)}"
            taken[cell] = panel["title"]
        assert panel["gridPos"].get("x", 0) + panel["gridPos"]["w"] <= 24


def _cells(place: dict[str, Any]) -> list[tuple[int, int]]:
    x, y = place.get("x", 0), place.get("y", 0)
    return [(column, line) for column in range(x, x + place["w"]) for line in range(y, y + place["h"])]
