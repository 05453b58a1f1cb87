"""The metrics and labels that a PromQL expression uses, from a parser."""

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import promql_parser

from yaml_text import yaml_of

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "src" / "gpucommons" / "stack" / "rules"
DASHBOARDS = ROOT / "src" / "gpucommons" / "stack" / "dashboards"

# Values for Grafana's built-in variables.
_VARIABLES = {"$__rate_interval": "10s", "$__range": "1m", "$__interval": "5s"}


def metric_names(expression: str) -> set[str]:
    found: set[str] = set()

    def visit(part: Any) -> bool:
        selector = part.vector_selector if isinstance(part, promql_parser.MatrixSelector) else part
        if isinstance(selector, promql_parser.VectorSelector):
            assert selector.name, f"a selector without a metric: {expression}"
            found.add(selector.name)
        return True

    promql_parser.walk(promql_parser.parse(expression), visit)
    return found


class Rule(NamedTuple):
    file: str
    kind: str
    name: str
    expr: str
    labels: dict[str, str]
    annotations: dict[str, str]


@cache
def rules() -> list[Rule]:
    return [rule for file in sorted(RULES.glob("*.yml")) for rule in _rules_of(file)]


def _rules_of(file: Path) -> Iterator[Rule]:
    for group in yaml_of(file.read_text())["groups"]:
        for rule in group["rules"]:
            kind = "alert" if "alert" in rule else "record"
            annotations = rule.get("annotations", {})
            yield Rule(file.name, kind, rule[kind], rule["expr"], rule.get("labels", {}), annotations)


class PanelQuery(NamedTuple):
    dashboard: str
    panel: str
    expr: str

    def with_values(self, **chosen: str) -> str:
        """The query as Grafana sends it: `node` and `gpu` match all, `user` is a single user."""
        text = self.expr
        for name, value in _VARIABLES.items():
            text = text.replace(name, value)
        for name, value in chosen.items():
            text = re.sub(rf"\$({name})\b|\$\{{{name}\}}", value, text)
        return text


@cache
def dashboards() -> dict[str, dict[str, Any]]:
    return {file.stem: json.loads(file.read_text()) for file in sorted(DASHBOARDS.glob("*.json"))}


def panels(dashboard: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            yield from panel.get("panels", [])
        else:
            yield panel


@cache
def panel_queries() -> list[PanelQuery]:
    return [
        PanelQuery(name, panel["title"], target["expr"])
        for name, dashboard in dashboards().items()
        for panel in panels(dashboard)
        for target in panel["targets"]
    ]
