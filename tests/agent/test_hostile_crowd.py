"""Thousands of clients with long names, and peers that do not read: metrics and memory stay limited."""

import contextlib
import socket
import urllib.parse
from pathlib import Path

import pytest

from parsing import parsed
from running import running_agent
from scheduler.served import Scripted
from waiting import until

pytestmark = pytest.mark.long

CLIENTS, SLOW_READERS, VIEWERS = 2000, 24, 60
# Without the limits: 20 MB.
MAX_BODY_BYTES = 8_000_000
# Without the limits: more than 400 MB.
MAX_RSS_KB = 260_000


def deaf(address: tuple[str, int], path: str) -> socket.socket:
    """Requests, reads the beginning, and reads no more."""
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.settimeout(60)
    peer.connect(address)
    peer.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    assert peer.recv(16).startswith(b"HTTP/1.1 200")
    return peer


def test_a_crowd_with_long_names_and_deaf_peers_takes_limited_memory(tmp_path: Path) -> None:
    path = str(tmp_path / "s.sock")
    with (
        contextlib.ExitStack() as stack,
        running_agent("--scheduler", environment={"GPUCOMMONS_SCHEDULER_SOCKET": path}) as agent,
    ):
        found = urllib.parse.urlsplit(agent.url)
        address = (str(found.hostname), found.port or 0)
        crowd = [Scripted(path).register(f"{number:05}" + "p" * 249, "n" * 254) for number in range(CLIENTS)]
        for client in crowd:
            stack.enter_context(client.socket)

        def shown() -> int:
            series = parsed(agent.get("/metrics/nvshare")[1])
            return int(sum(value for (name, _), value in series.items() if name == "nvshare_client_info"))

        until(lambda: shown() == CLIENTS, "all clients are shown", within_s=60)
        assert len(agent.get("/metrics")[1]) < MAX_BODY_BYTES
        for number in range(max(SLOW_READERS, VIEWERS)):
            if number < SLOW_READERS:
                stack.enter_context(deaf(address, "/metrics"))
            if number < VIEWERS:
                stack.enter_context(deaf(address, "/api/v1/stream"))
        assert agent.rss_kb() < MAX_RSS_KB
        assert shown() == CLIENTS
        assert agent.stop() == 0
