"""What an enormous or hostile answer of Prometheus costs: at most 64 MB of the process that reads it."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tiers import in_long_tier

_READ = """
import asyncio, json, resource, sys
from gpucommons.faces.documents.fleet import fleet_document
from gpucommons.faces.fleet.queries import FleetError
from gpucommons.faces.fleet.reader import FleetSource
from gpucommons.model.viewer import Viewer

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

import aiohttp
before = peak()
try:
    view = asyncio.run(FleetSource(sys.argv[1], "", "http://{instance}/", 100.0).read())
    said = f"{len(json.dumps(fleet_document(view, Viewer(None, True))))} bytes"
except FleetError as error:
    said = str(error)
print(json.dumps([peak() - before, said]))
"""
_HEAD = b'{"status":"success","data":{"resultType":"vector","result":['
_ANSWER_BYTES = 40_000_000


class _Hostile(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Connection", "close")
        self.end_headers()
        try:
            self.wfile.write(_HEAD)
            number, size = 0, 0
            while size < _ANSWER_BYTES:
                text = b"".join(self.row(number + each) for each in range(100))
                number, size = number + 100, size + len(text)
                self.wfile.write(text)
            self.wfile.write(b'{"metric":{},"value":[0,"0"]}]}}')
        except OSError:
            pass
        self.close_connection = True

    def row(self, number: int) -> bytes:
        raise NotImplementedError

    def log_message(self, format: str, *args: object) -> None:
        pass


class _ManyRows(_Hostile):
    """Short rows, all different."""

    def row(self, number: int) -> bytes:
        names = b'"instance":"n%d","uuid":"u%d","state":"free"'
        return b'{"metric":{%s},"value":[0,"1"]},' % (names % (number // 8, number))


class _LongTexts(_Hostile):
    """Every label is as long as a row may be, and none is like another."""

    def row(self, number: int) -> bytes:
        names = (b"instance", b"uuid", b"holder", b"state", b"slot", b"gpu_uuid", b"job", b"node")
        labels = b",".join(b'"%s":"%s%d"' % (name, b"x" * 190, number) for name in names)
        return b'{"metric":{%s},"value":[0,"1"]},' % labels


class _OneRow(_Hostile):
    """A row that does not end."""

    def row(self, number: int) -> bytes:
        return (b'{"metric":{"uuid":"' if number == 0 else b"") + b"x" * 1000


class _Nested(_Hostile):
    """Lists in lists."""

    def row(self, number: int) -> bytes:
        return b"[" * 1000


@contextmanager
def serving(handler: type[_Hostile]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.parametrize("handler", [_OneRow, *in_long_tier(_Nested, _ManyRows, _LongTexts)])
def test_a_hostile_answer_costs_at_most_64_mb(handler: type[_Hostile]) -> None:
    with serving(handler) as url:
        done = subprocess.run([sys.executable, "-c", _READ, url], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    cost_bytes, said = json.loads(done.stdout)
    assert cost_bytes <= 64_000_000, said
