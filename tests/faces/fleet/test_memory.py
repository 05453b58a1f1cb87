"""What an enormous or hostile answer of Prometheus costs: at most 64 MB of the process that reads it."""

import itertools
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
from gpucommons.faces.fleet.jobs import read_job_nodes
from gpucommons.faces.fleet.queries import FleetError
from gpucommons.faces.fleet.reader import FleetSource
from gpucommons.faces.history.prometheus import Prometheus, PrometheusError
from gpucommons.model.viewer import Viewer

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

async def fleet(url):
    view = await FleetSource(url, "", "http://{instance}/", 100.0).read()
    return f"{len(json.dumps(fleet_document(view, Viewer(None, True))))} bytes"

async def job(url):
    return f"{len(await read_job_nodes(FleetSource(url, '', '', 100.0), '1'))} nodes"

async def history(url):
    window = await Prometheus(url).window("gpu_power_watts", ["GPU-1"], 0, 10**7, 4000)
    return f"{len(window.columns)} columns"

import aiohttp
before = peak()
try:
    said = asyncio.run(globals()[sys.argv[2]](sys.argv[1]))
except (FleetError, PrometheusError) as error:
    said = str(error)
print(json.dumps([peak() - before, said]))
"""
_HEAD = b'{"status":"success","data":{"resultType":"vector","result":['


class _Hostile(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    answer_bytes = 40_000_000
    requests = itertools.count()

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Connection", "close")
        self.end_headers()
        try:
            self.wfile.write(_HEAD)
            number, size = next(self.requests) << 32, 0
            while size < self.answer_bytes:
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
        return (b'{"metric":{"uuid":"' if not number & 0xFFFFFFFF else b"") + b"x" * 1000


class _Nested(_Hostile):
    """Lists in lists."""

    def row(self, number: int) -> bytes:
        return b"[" * 1000


class _ManyNodes(_Hostile):
    """Each of the eight answers has 6,000 nodes of its own, which is below the limit of one job."""

    answer_bytes = 6_000 * 79

    def row(self, number: int) -> bytes:
        return b'{"metric":{"instance":"n%013d","slot":"%012d"},"value":[0,"1"]},' % (number, number)


class _MoreNodes(_ManyNodes):
    """Each answer is below the limit, and not all together."""

    answer_bytes = 6_000_000


class _ManyColumns(_Hostile):
    """A GPU in each row, none of which was asked for, and all of them small enough to be read."""

    answer_bytes = 7_000_000

    def row(self, number: int) -> bytes:
        return b'{"metric":{"UUID":"u%d"},"values":[]},' % number


class _EmptyLists(_ManyColumns):
    """A row of the GPU that was asked for, with lists instead of values."""

    def row(self, number: int) -> bytes:
        return (b'{"metric":{"UUID":"GPU-1"},"values":[' if not number & 0xFFFFFFFF else b"") + b"[],"


@contextmanager
def serving(handler: type[_Hostile]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.parametrize(
    "case",
    [
        ("fleet", _OneRow),
        ("history", _ManyColumns),
        *in_long_tier(
            *(("fleet", handler) for handler in (_Nested, _ManyRows, _LongTexts)),
            *(("job", handler) for handler in (_Nested, _LongTexts, _ManyNodes, _MoreNodes)),
            *(("history", handler) for handler in (_Nested, _EmptyLists)),
        ),
    ],
)
def test_a_hostile_answer_costs_at_most_64_mb(case: tuple[str, type[_Hostile]]) -> None:
    reading, handler = case
    with serving(handler) as url:
        done = subprocess.run([sys.executable, "-c", _READ, url, reading], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    cost_bytes, said = json.loads(done.stdout)
    assert cost_bytes <= 64_000_000, said
