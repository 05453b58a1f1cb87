"""The queries of a peer's dashboards and alerts, against the agent and against the peer's own exporter.

One Prometheus scrapes both. Each query runs once on the series of each, and so does each selector in it: an alert that
does not fire has no result, but its selectors have series. A query holds if both have the same number of series, for
the query and for each of its selectors.

    python -m bench.peer_queries --dialect nodeexporter --peer 127.0.0.1:9100 alerts.yaml dashboard.json

FILES are Grafana dashboards (JSON) and rule files of Prometheus (YAML); they are not part of this project.
"""

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from bench.table import show
from prometheus_server import Prometheus, running_prometheus
from running import running_agent

_SCRAPE_S = 5
# A rate over a minute needs this long.
_SETTLE_S = 75
_WINDOW = "1m"
_SELECTOR = re.compile(r"\b([a-zA-Z_:][a-zA-Z0-9_:]*)\s*\{([^{}]*)\}|\b((?:node|nvidia_smi|DCGM)_[a-zA-Z0-9_]+)\b")
_INTERVALS = re.compile(r"\$\{?__(?:rate_)?interval\}?|\$\{?__range\}?")
_VARIABLE = re.compile(r"(=~|!~|!=|=)\s*\"[^\"]*\$[^\"]*\"")


def queries_of(file: Path) -> Iterator[tuple[str, str]]:
    """(name, query) of each rule or panel."""
    if file.suffix == ".json":
        yield from _panels(json.loads(file.read_text()), "")
        return
    for group in yaml.safe_load(file.read_text())["groups"]:
        for rule in group["rules"]:
            yield rule.get("alert") or rule["record"], rule["expr"]


def _panels(node: Any, title: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, dict):
        title = node.get("title") or title if isinstance(node.get("title"), str) else title
        if isinstance(node.get("expr"), str):
            yield title, node["expr"]
        for value in node.values():
            yield from _panels(value, title)
    elif isinstance(node, list):
        for value in node:
            yield from _panels(value, title)


def for_instance(query: str, instance: str) -> str:
    """The query on the series of one exporter, with every variable of the dashboard set to all."""
    query = _INTERVALS.sub(_WINDOW, query)
    query = _VARIABLE.sub('=~".*"', query)
    query = re.sub(r"\s*job=\"[^\"]*\",?", "", query)

    def restricted(found: re.Match[str]) -> str:
        name, matchers, bare = found.groups()
        if bare and query[found.end() : found.end() + 1] == "{":
            return found[0]
        kept = (matchers or "").strip().rstrip(",")
        return f'{name or bare}{{{kept}{"," if kept else ""}exporter="{instance}"}}'

    return _SELECTOR.sub(restricted, query)


def count(prometheus: Prometheus, query: str) -> int:
    return len(prometheus.query(query))


def compare(prometheus: Prometheus, name: str, query: str) -> tuple[str, ...]:
    """One row: the query's series here and there, those of its selectors, and the verdict."""
    ours, theirs = (count(prometheus, for_instance(query, exporter)) for exporter in ("agent", "peer"))
    pairs = [
        tuple(count(prometheus, for_instance(selector, exporter)) for exporter in ("agent", "peer"))
        for selector in dict.fromkeys(found[0] for found in _SELECTOR.finditer(_INTERVALS.sub(_WINDOW, query)))
    ]
    equal = ours == theirs and all(left == right for left, right in pairs)
    data = all(right for _, right in pairs)
    verdict = "differs" if not equal else "equal" if data else "equal (the peer has no series)"
    return name, f"{ours} / {theirs}", ", ".join(f"{left} / {right}" for left, right in pairs), verdict


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare a peer's queries on the agent and on the peer.")
    parser.add_argument("--dialect", required=True)
    parser.add_argument("--peer", required=True, help="HOST:PORT of the peer's exporter")
    parser.add_argument("--settle", type=float, default=_SETTLE_S, help="seconds of scrapes before the queries")
    parser.add_argument("files", nargs="+", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, running_agent(environment=dict(os.environ)) as agent:
        config = Path(directory) / "prometheus.yml"
        jobs = [
            {
                "job_name": exporter,
                "metrics_path": path,
                "static_configs": [{"targets": [address], "labels": {"exporter": exporter}}],
            }
            for exporter, path, address in (
                ("agent", f"/metrics/{given.dialect}", agent.url.removeprefix("http://").rstrip("/")),
                ("peer", "/metrics", given.peer),
            )
        ]
        config.write_text(yaml.safe_dump({"global": {"scrape_interval": f"{_SCRAPE_S}s"}, "scrape_configs": jobs}))
        with running_prometheus(config, Path(directory) / "data") as prometheus:
            prometheus.wait_for('count(up{exporter="agent"} == 1) and on() (count(up{exporter="peer"} == 1))')
            time.sleep(given.settle)
            rows = [compare(prometheus, name, query) for file in given.files for name, query in queries_of(file)]
    show(f"Queries on {given.dialect} and its peer", ("query", "series here / there", "of its selectors", ""), rows)
    differing = sum(row[-1] == "differs" for row in rows)
    print(f"{len(rows) - differing} of {len(rows)} queries equal")
    sys.exit(bool(differing))


if __name__ == "__main__":
    main()
