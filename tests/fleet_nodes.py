"""Nodes of a fleet as a Prometheus sees them: one server has a path for each, with the text of the real dialect."""

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from demo_node import DemoNode
from gpucommons.faces.dialects.gpucommons import GPUCOMMONS
from gpucommons.faces.exposition.exposition import Exposition
from gpucommons.model.allocations import (
    WHOLE_SHARE,
    Account,
    Allocation,
    AllocationState,
    Slot,
    SlotsReading,
    SlotState,
    SlotStatus,
    WorkloadKind,
)
from gpucommons.model.snapshot import Readings, Snapshot
from prometheus_server import Prometheus, running_prometheus
from waiting import until

GIB = 2**30
_MEMORY_GIB = {"NVIDIA H200": 140, "NVIDIA A100-SXM4-80GB": 80, "NVIDIA GeForce RTX 4090": 24}
MODELS = tuple(_MEMORY_GIB)
_TIME = "gpucommons_snapshot_timestamp_seconds "


@dataclass(frozen=True)
class SimpleNode:
    """A node with whole GPUs: the state and the holder of each. Its GPUs have UUIDs that no other node has."""

    number: int
    slots: Sequence[tuple[SlotState, str]]
    model: str = MODELS[0]
    idle_s: float = 4000.0

    def uuid(self, index: int) -> str:
        return f"GPU-{self.number:08x}-5b1d-4c7e-9a51-{index:012x}"

    def text(self) -> str:
        now_s = time.time()
        gpus = DemoNode(gpus=len(self.slots)).gpu_reading(float(self.number))
        cards = tuple(
            gpu._replace(
                identity=replace(gpu.identity, uuid=self.uuid(index), name=self.model),
                up=state is not SlotState.LOST,
                readings=gpu.readings if state is SlotState.BUSY else gpu.readings._replace(utilization_percent=0),
                mig=(),
                mig_enabled=False,
            )
            for index, (gpu, (state, _)) in enumerate(zip(gpus.gpus, self.slots, strict=True))
        )
        statuses = tuple(self._status(index, *slot, now_s) for index, slot in enumerate(self.slots))
        readings = Readings(gpus=gpus._replace(gpus=cards), slots=SlotsReading(statuses))
        exposition = Exposition(lambda: Snapshot(1, 0.0, now_s, f"gpu-{self.number}", readings=readings), [GPUCOMMONS])
        return exposition.metrics(None, False, gzip=False)[0].decode()

    def _status(self, index: int, state: SlotState, holder: str, now_s: float) -> SlotStatus:
        slot = Slot(self.uuid(index), self.uuid(index), str(index))
        held = Allocation(
            account=Account("user", holder, user=holder),
            kind=WorkloadKind.CONTAINER,
            workload="train",
            workload_id="train",
            slot=slot,
            profile="",
            share=WHOLE_SHARE,
            state=AllocationState.RUNNING,
            interface="docker",
            managed=True,
        )
        return SlotStatus(
            slot,
            index,
            "",
            state,
            holders=(held,) if holder else (),
            since_wall_s=now_s - 7200,
            idle_s=self.idle_s + index if state is SlotState.HELD_IDLE else None,
            memory_total_bytes=_MEMORY_GIB[self.model] * GIB,
            memory_free_bytes=(_MEMORY_GIB[self.model] - (0 if state is SlotState.FREE else 20)) * GIB,
        )


@dataclass
class NodeServer:
    """`texts` by path. The time of the snapshot is that of the scrape. A path that is removed is 404."""

    texts: dict[str, str] = field(default_factory=dict)
    port: int = 0
    scraped: set[str] = field(default_factory=set)

    def answer(self, path: str) -> bytes | None:
        text = self.texts.get(path.lstrip("/"))
        if text is None:
            return None
        self.scraped.add(path.lstrip("/"))
        head, _, rest = text.partition(f"\n{_TIME}")
        return f"{head}\n{_TIME}{time.time():.3f}\n{rest.partition(chr(10))[2]}".encode()


@contextmanager
def node_server(texts: Mapping[str, str]) -> Iterator[NodeServer]:
    nodes = NodeServer(dict(texts))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = nodes.answer(self.path)
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        # A fleet is scraped in one moment.
        request_queue_size = 256

        def handle_error(self, request: object, client_address: object) -> None:
            """Prometheus is killed at the end, with its connections."""

    server = Server(("127.0.0.1", 0), Handler)
    nodes.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield nodes
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def scrape_config(port: int, instances: Mapping[str, str], interval_s: int = 1) -> str:
    """The configuration of a Prometheus that scrapes each path as the target of that name."""
    targets = [
        {"targets": [f"127.0.0.1:{port}"], "labels": {"__metrics_path__": f"/{path}", "instance": instance}}
        for instance, path in instances.items()
    ]
    jobs = [{"job_name": "gpucommons", "static_configs": targets}]
    # JSON is YAML.
    return json.dumps({"global": {"scrape_interval": f"{interval_s}s"}, "scrape_configs": jobs})


@contextmanager
def fleet(
    nodes: Mapping[str, SimpleNode], folder: Path, interval_s: int = 1, only: tuple[str, ...] = ()
) -> Iterator[tuple[NodeServer, Prometheus]]:
    """A Prometheus that has scraped every node once. The keys are the instances. `only`: the metrics that it has."""
    paths = {instance: f"node-{node.number}" for instance, node in nodes.items()}
    with node_server({paths[instance]: _kept(node.text(), only) for instance, node in nodes.items()}) as server:
        config = folder / "prometheus.yml"
        config.write_text(scrape_config(server.port, paths, interval_s))
        with running_prometheus(config, folder / "data") as prometheus:
            count = f"count(gpucommons_snapshot_timestamp_seconds) == {len(nodes)}"
            until(lambda: prometheus.query(count), "every node is scraped", within_s=60 + 4 * interval_s)
            yield server, prometheus


def _kept(text: str, only: tuple[str, ...]) -> str:
    """The lines of these metrics. Prometheus would drop the others after reading them."""
    if not only:
        return text
    return "".join(f"{line}\n" for line in text.splitlines() if line.startswith(only))
