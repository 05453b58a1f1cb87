"""A Prometheus and an Alertmanager, each in a separate process on loopback, for tests that query them."""

import json
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from needs import needs_program
from waiting import until


@dataclass(frozen=True)
class Prometheus:
    url: str

    def query(self, expression: str) -> list[dict[str, object]]:
        address = f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        with urllib.request.urlopen(address, timeout=10) as answer:
            found: list[dict[str, object]] = json.load(answer)["data"]["result"]
            return found

    def wait_for(self, expression: str, within_s: float = 30) -> list[dict[str, object]]:
        return until(lambda: self.query(expression), f"data for {expression}", within_s)


def answers(request: str | urllib.request.Request) -> bool:
    """Whether the URL can be fetched without an error."""
    try:
        urllib.request.urlopen(request, timeout=5).close()
    except OSError:
        return False
    return True


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running_prometheus(config: Path, data: Path) -> Iterator[Prometheus]:
    needs_program("prometheus")
    port = free_port()
    process = subprocess.Popen(
        [
            "prometheus",
            f"--config.file={config}",
            f"--storage.tsdb.path={data}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    server = Prometheus(f"http://127.0.0.1:{port}")
    try:
        ready = f"{server.url}/-/ready"
        until(lambda: process.poll() is not None or answers(ready), "prometheus starts", within_s=30)
        assert process.poll() is None, "prometheus did not start"
        yield server
    finally:
        process.kill()
        process.wait()


@dataclass(frozen=True)
class Alertmanager:
    url: str

    def send(self, *alerts: Mapping[str, object]) -> None:
        self._ask(json.dumps(alerts).encode())

    def alerts(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self._ask(None))
        return found

    def _ask(self, body: bytes | None) -> bytes:
        request = urllib.request.Request(f"{self.url}/api/v2/alerts", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            found: bytes = answer.read()
            return found


@contextmanager
def running_alertmanager(config: str, directory: Path) -> Iterator[Alertmanager]:
    needs_program("prometheus-alertmanager")
    file, port = directory / "alertmanager.yml", free_port()
    file.write_text(config)
    process = subprocess.Popen(
        [
            "prometheus-alertmanager",
            f"--config.file={file}",
            f"--storage.path={directory / 'alertmanager'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--cluster.listen-address=",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    server = Alertmanager(f"http://127.0.0.1:{port}")
    try:
        ready = f"{server.url}/-/ready"
        until(lambda: process.poll() is not None or answers(ready), "alertmanager starts", within_s=30)
        assert process.poll() is None, "alertmanager did not start"
        yield server
    finally:
        process.kill()
        process.wait()
