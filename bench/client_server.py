"""prometheus_client's HTTP server with samples from a file: `python -m bench.client_server PORT FILE`."""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector


class Fixed(Collector):
    """The same families at every scrape; the server renders them each time, as in real use."""

    def __init__(self, text: str) -> None:
        self._families = list(text_string_to_metric_families(text))

    def collect(self) -> Iterator[Metric]:
        return iter(self._families)


def main() -> None:
    port, file = int(sys.argv[1]), Path(sys.argv[2])
    registry = CollectorRegistry()
    registry.register(Fixed(file.read_text()))
    start_http_server(port, addr="127.0.0.1", registry=registry)
    threading.Event().wait()


if __name__ == "__main__":
    main()
