"""The cost of the monitoring stack: series per dialect, and Prometheus's memory, CPU and disk at 1, 10 and 100 nodes.

Every node is the simulated lab (8 GPUs, 12 jobs), scraped under its own name; rules and Alertmanager run as shipped.
Scrapes are three times as frequent as shipped, so that a minute is enough; CPU and samples per second are scaled to the
shipped interval. In the lab a day passes in ten minutes: its values change more between two scrapes than real ones, so
the disk size is an upper bound.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.idle import cpu_seconds, rss_mb
from bench.table import show
from gpucommons.config.stack import StackSettings
from gpucommons.faces.dialects.all import DIALECTS
from gpucommons.stack.local import LocalEngine
from gpucommons.stack.process import read_pid_file
from gpucommons.stack.prometheus import Layout
from gpucommons.stack.stack import Stack
from prometheus_server import answers, free_port
from waiting import until

NODES = (1, 10, 100)
SPEED_UP = 3.0
MEASURE_S = 60.0
# Long enough for a full chunk of samples in each series.
DISK_S = 120.0
# Prometheus writes a block every two hours.
_SAMPLES_OF_A_BLOCK = 7200 / 15
_APPENDED = "prometheus_tsdb_head_samples_appended_total"


def get(url: str, data: bytes | None = None) -> bytes:
    with urllib.request.urlopen(urllib.request.Request(url, data=data), timeout=30) as answer:
        body: bytes = answer.read()
        return body


@contextmanager
def lab() -> Iterator[str]:
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "gpucommons", "up", "--simulate", "lab", "--listen", address]
    state = tempfile.mkdtemp(prefix="stack-lab-")
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "STATE_DIRECTORY": state},
    )
    try:
        until(lambda: answers(f"http://{address}/readyz"), "the simulated node answers")
        yield address
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(state, ignore_errors=True)


@contextmanager
def stack(agent: str, nodes: int, root: Path, speed_up: float) -> Iterator[tuple[str, int]]:
    """HOST:PORT and pid of a Prometheus that scrapes this many nodes."""
    targets = root / "targets"
    targets.mkdir(parents=True)
    fleet = [{"targets": [agent], "labels": {"node": f"node{n}"}} for n in range(1, nodes)]
    (targets / "fleet.yml").write_text(json.dumps(fleet))
    settings = StackSettings(
        engine="local",
        agent=agent,
        prometheus_listen=f"127.0.0.1:{free_port()}",
        alertmanager_listen=f"127.0.0.1:{free_port()}",
        scrape_interval_s=15.0 / speed_up,
        ds01_interval_s=30.0 / speed_up,
    )
    layout = Layout(root)
    engine = LocalEngine(Stack(settings, layout, "node0", lambda line: None, lambda port: None))
    engine.start()
    try:
        process = read_pid_file(layout.run / "prometheus.pid")
        assert process is not None
        yield settings.prometheus_listen, process.pid
    finally:
        engine.stop()


def value(prometheus: str, expression: str) -> float:
    query = urllib.parse.urlencode({"query": expression})
    result: list[Any] = json.loads(get(f"http://{prometheus}/api/v1/query?{query}"))["data"]["result"]
    return float(result[0]["value"][1]) if result else 0.0


def series_per_dialect(agent: str) -> list[tuple[str, int, int]]:
    rows = []
    for dialect in DIALECTS:
        lines = get(f"http://{agent}/metrics/{dialect.name}").decode().splitlines()
        names = Counter(line.partition("{")[0].partition(" ")[0] for line in lines if line and line[0] != "#")
        rows.append((dialect.name, len(names), sum(names.values())))
    return rows


def load_of(agent: str, nodes: int, sample_bytes: float) -> tuple[str, ...]:
    root = Path(tempfile.mkdtemp(prefix="stack-load-"))
    try:
        with stack(agent, nodes, root, SPEED_UP) as (prometheus, pid):
            time.sleep(15.0)  # until every target has been found and scraped once
            before_cpu, before_samples = (
                cpu_seconds(pid),
                value(prometheus, "prometheus_tsdb_head_samples_appended_total"),
            )
            begun = time.monotonic()
            time.sleep(MEASURE_S)
            elapsed = time.monotonic() - begun
            cpu = (cpu_seconds(pid) - before_cpu) / elapsed / SPEED_UP
            per_second = (value(prometheus, _APPENDED) - before_samples) / elapsed / SPEED_UP
            series = value(prometheus, "prometheus_tsdb_head_series")
            return (
                str(nodes),
                f"{series:,.0f}",
                f"{per_second:,.0f}",
                f"{rss_mb(pid):,.0f} MB",
                f"{100 * cpu:.1f} %",
                f"{per_second * 86400 * sample_bytes / 1e6:,.0f} MB",
            )
    finally:
        shutil.rmtree(root, ignore_errors=True)


def bytes_per_sample(agent: str) -> float:
    """From a block that Prometheus wrote: chunks per sample, and the index per samples of two hours."""
    root = Path(tempfile.mkdtemp(prefix="stack-disk-"))
    try:
        with stack(agent, 1, root, speed_up=15.0):
            time.sleep(DISK_S)
        dump = subprocess.run(["promtool", "tsdb", "dump", str(root / "prometheus")], capture_output=True, check=True)
        text = _openmetrics(dump.stdout.decode())
        (root / "samples.txt").write_text(text)
        command = [
            "promtool",
            "tsdb",
            "create-blocks-from",
            "openmetrics",
            str(root / "samples.txt"),
            str(root / "out"),
        ]
        subprocess.run(command, capture_output=True, check=True)
        blocks = [json.loads(meta.read_text())["stats"] for meta in (root / "out").glob("*/meta.json")]
        chunks = sum(file.stat().st_size for file in (root / "out").glob("*/chunks/*"))
        index = sum(file.stat().st_size for file in (root / "out").glob("*/index"))
        samples = sum(stats["numSamples"] for stats in blocks)
        series = sum(stats["numSeries"] for stats in blocks)
        return float(chunks / samples + index / series / _SAMPLES_OF_A_BLOCK)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _openmetrics(dump: str) -> str:
    """The output of `promtool tsdb dump` in the format of `create-blocks-from`: name before labels, seconds, sorted."""
    samples = []
    for line in dump.splitlines():
        labels, _, rest = line.removeprefix("{").rpartition("} ")
        number, stamp = rest.split()
        parts = re.split(r', (?=\w+=")', labels)
        (name,) = [part for part in parts if part.startswith("__name__=")]
        others = ",".join(part for part in parts if part is not name)
        samples.append((f"{name[10:-1]}{{{others}}}", int(stamp), number))
    lines = [f"{series} {number} {stamp / 1000}" for series, stamp, number in sorted(samples)]
    return "\n".join([*lines, "# EOF", ""])


def main() -> None:
    if not all(shutil.which(program) for program in ("prometheus", "prometheus-alertmanager", "promtool")):
        raise SystemExit("needs prometheus and prometheus-alertmanager: sudo apt install them")
    with lab() as agent:
        time.sleep(15.0)  # until the ledger has been written and every source has been read
        rows = series_per_dialect(agent)
        total = ("all", sum(row[1] for row in rows), sum(row[2] for row in rows))
        show("Series of one simulated lab node", ("dialect", "families", "series"), [*rows, total])
        size = bytes_per_sample(agent)
        show(
            f"Prometheus with all rules, at the shipped intervals (15 s, ds01 30 s); {size:.1f} bytes a sample on disk",
            ("nodes", "series", "samples/s", "RSS", "CPU of one core", "disk a day"),
            [load_of(agent, nodes, size) for nodes in NODES],
        )


if __name__ == "__main__":
    main()
