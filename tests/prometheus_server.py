"""A real Prometheus in a process of its own, on loopback, for tests that ask it what it scraped."""

import json
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from needs import needs_program


@dataclass(frozen=True)
class Prometheus:
    url: str

    def query(self, expression: str) -> list[dict[str, object]]:
        address = f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        with urllib.request.urlopen(address, timeout=10) as answer:
            found: list[dict[str, object]] = json.load(answer)["data"]["result"]
            return found

    def wait_for(self, expression: str, within_s: float = 30) -> list[dict[str, object]]:
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            result = self.query(expression)
            if result:
                return result
            time.sleep(0.2)
        raise AssertionError(f"no data for {expression} within {within_s:g} s")


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
        for _ in range(300):
            try:
                urllib.request.urlopen(f"{server.url}/-/ready", timeout=5).close()
                break
            except (urllib.error.URLError, ConnectionError):
                assert process.poll() is None, "prometheus did not start"
                time.sleep(0.1)
        yield server
    finally:
        process.kill()
        process.wait()
