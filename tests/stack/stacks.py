"""A stack on free ports in a directory of the test, and a web server with a fixed response."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from gpucommons.base.processes import port_owner
from gpucommons.config.stack import StackSettings
from gpucommons.stack.prometheus import Layout
from gpucommons.stack.stack import Stack
from prometheus_server import free_port


def settings_on_free_ports(**changes: object) -> StackSettings:
    """Other settings have their defaults."""
    ports = StackSettings(
        engine="local",
        node="here",
        agent=f"127.0.0.1:{free_port()}",
        prometheus_listen=f"127.0.0.1:{free_port()}",
        alertmanager_listen=f"127.0.0.1:{free_port()}",
        grafana_listen=f"127.0.0.1:{free_port()}",
    )
    return replace(ports, **changes)  # type: ignore[arg-type]


def stack_in(root: Path, settings: StackSettings | None = None, said: list[str] | None = None) -> Stack:
    lines = [] if said is None else said
    chosen = settings or settings_on_free_ports()
    return Stack(chosen, Layout(root), chosen.node, lines.append, port_owner)


@contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    """HOST:PORT of a server that sends this response to every GET."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
