"""The queries of a peer's dashboards and alerts, against the agent and against the peer's own exporter.

One Prometheus scrapes both. Each query runs once on the series of each, and so does each selector in it: an alert that
does not fire has no result, but its selectors have series. A query holds if the agent has at least as many series as
the peer, for the query and for each of its selectors.

    python -m bench.peer_queries --dialect nodeexporter --peer 127.0.0.1:9100 alerts.yaml dashboard.json
    python -m bench.peer_queries --dialect nodeexporter --made-machine alerts.yaml

With `--made-machine` both read the machine made of files of the tests, with software RAIDs, a bond and sensors, and
the peer is Debian's node_exporter, which the script starts.

FILES are Grafana dashboards (JSON) and rule files of Prometheus (YAML); they are not part of this project.
"""

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml

from bench.table import show
from faces.dialects.nodeexporter.made_machine import MadeMachine, made_machine
from faces.dialects.nodeexporter.test_made_machine import UPSTREAM, their_arguments
from prometheus_server import Prometheus, running_prometheus
from running import running_agent
from testbeds.node_exporter import running_node_exporter

_SCRAPE_S = 5
# A rate over a minute needs this long.
_SETTLE_S = 75
_WINDOW = "1m"
# A string, a selector with braces, or the bare name of a metric.
_STRING = r"\"(?:[^\"\\]|\\.)*\""
_SELECTOR = re.compile(
    rf"(?P<string>{_STRING})|(?P<name>[a-zA-Z_:][\w:]*)?\{{(?P<matchers>(?:[^{{}}\"]|{_STRING})*)\}}"
    r"|\b(?P<bare>(?:node|nvidia_smi|DCGM)_\w+)\b(?!\s*\{)"
)
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

    def restricted(match: re.Match[str]) -> str:
        if match["string"]:
            return match[0]
        matchers = [text for text in ((match["matchers"] or "").strip().rstrip(","), f'exporter="{instance}"') if text]
        return f"{match['name'] or match['bare'] or ''}{{{','.join(matchers)}}}"

    return _SELECTOR.sub(restricted, query)


def selectors_of(query: str) -> list[str]:
    matches = _SELECTOR.finditer(_INTERVALS.sub(_WINDOW, query))
    return list(dict.fromkeys(match[0] for match in matches if not match["string"]))


def count(prometheus: Prometheus, query: str) -> int:
    return len(prometheus.query(query))


def compare(prometheus: Prometheus, name: str, query: str) -> tuple[str, ...]:
    """One row: the query's series here and there, those of its selectors, and the verdict."""
    ours, theirs = (count(prometheus, for_instance(query, exporter)) for exporter in ("agent", "peer"))
    pairs = [
        tuple(count(prometheus, for_instance(selector, exporter)) for exporter in ("agent", "peer"))
        for selector in selectors_of(query)
    ]
    if all(left == right for left, right in ((ours, theirs), *pairs)):
        verdict = "equal" if all(right for _, right in pairs) else "equal (the peer lacks a series)"
    else:
        verdict = "more here" if all(left >= right for left, right in ((ours, theirs), *pairs)) else "differs"
    return name, f"{ours} / {theirs}", ", ".join(f"{left} / {right}" for left, right in pairs), verdict


def run_queries(
    dialect: str, peer: str, files: Sequence[Path], environment: Mapping[str, str], settle_s: float = _SETTLE_S
) -> bool:
    """Prints one row for each query; whether any differs. `environment` is the agent's."""
    with tempfile.TemporaryDirectory() as directory, running_agent(environment=environment) as agent:
        config = Path(directory) / "prometheus.yml"
        jobs = [
            {
                "job_name": exporter,
                "metrics_path": path,
                "static_configs": [{"targets": [address], "labels": {"exporter": exporter}}],
            }
            for exporter, path, address in (
                ("agent", f"/metrics/{dialect}", agent.url.removeprefix("http://").rstrip("/")),
                ("peer", "/metrics", peer),
            )
        ]
        config.write_text(yaml.safe_dump({"global": {"scrape_interval": f"{_SCRAPE_S}s"}, "scrape_configs": jobs}))
        with running_prometheus(config, Path(directory) / "data") as prometheus:
            prometheus.wait_for('count(up{exporter="agent"} == 1) and on() (count(up{exporter="peer"} == 1))')
            time.sleep(settle_s)
            rows = [compare(prometheus, name, query) for file in files for name, query in queries_of(file)]
    show(f"Queries on {dialect} and its peer", ("query", "series here / there", "of its selectors", ""), rows)
    differing = sum(row[-1] == "differs" for row in rows)
    print(f"{len(rows) - differing} of {len(rows)} queries hold")
    return bool(differing)


def node_exporter_on(stack: ExitStack, machine: MadeMachine) -> str:
    """HOST:PORT of a node_exporter that reads the machine."""
    url = stack.enter_context(
        running_node_exporter(
            f"--path.procfs={machine.procfs}",
            f"--path.sysfs={machine.sysfs}",
            f"--path.rootfs={machine.rootfs}",
            f"--path.udev.data={machine.udev_data}",
            *their_arguments(UPSTREAM),
        )
    )
    return url.removeprefix("http://").removesuffix("/metrics")


def agent_on(machine: MadeMachine) -> Mapping[str, str]:
    """The variables of an agent that reads the machine."""
    return {
        "GPUCOMMONS_PATH_PROCFS": str(machine.procfs),
        "GPUCOMMONS_PATH_SYSFS": str(machine.sysfs),
        "GPUCOMMONS_PATH_ROOTFS": str(machine.rootfs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare a peer's queries on the agent and on the peer.")
    parser.add_argument("--dialect", required=True)
    peers = parser.add_mutually_exclusive_group(required=True)
    peers.add_argument("--peer", help="HOST:PORT of the peer's exporter")
    peers.add_argument("--made-machine", action="store_true", help="node_exporter on a machine made of files")
    parser.add_argument("--settle", type=float, default=_SETTLE_S, help="seconds of scrapes before the queries")
    parser.add_argument("files", nargs="+", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        environment, peer = dict(os.environ), given.peer
        if given.made_machine:
            machine = made_machine(Path(directory))
            environment |= agent_on(machine)
            peer = node_exporter_on(stack, machine)
        sys.exit(run_queries(given.dialect, peer, given.files, environment, given.settle))


if __name__ == "__main__":
    main()
