"""docs/monitoring.md lists exactly the alerts, verbs, dashboards and panels that may be empty."""

import re
from pathlib import Path

from dashboards.may_be_empty import MAY_BE_EMPTY
from gpucommons.cli.stack import app
from stack.promql import dashboards, rules

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "monitoring.md").read_text()


def test_every_alert_is_listed_with_its_severity() -> None:
    listed = dict(re.findall(r"^\| `(\w+)` \| (critical|warning|info) \|", PAGE, re.MULTILINE))
    assert listed == {rule.name: rule.labels["severity"] for rule in rules() if rule.kind == "alert"}


def test_every_verb_is_listed() -> None:
    table = PAGE.partition("## Commands")[2].partition("## Settings")[0]
    for command in app.registered_commands:
        assert command.callback is not None
        assert f"`{command.callback.__name__}" in table


def test_every_dashboard_is_listed_with_its_address() -> None:
    assert set(re.findall(r"^\| `/d/([\w-]+)` \|", PAGE, re.MULTILINE)) == {
        dashboard["uid"] for dashboard in dashboards().values()
    }


def test_every_panel_that_may_be_empty_is_listed() -> None:
    text = " ".join(PAGE.split())
    for _, panel in MAY_BE_EMPTY:
        assert f"*{panel}*" in text
