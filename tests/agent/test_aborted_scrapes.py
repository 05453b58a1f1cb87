"""Scrapes that are aborted in the middle of a large page affect neither the next scrape nor the turns."""

import os
import socket
import struct
import urllib.parse
from pathlib import Path

import pytest

from parsing import parsed
from running import running_agent
from scheduler.served import Scripted
from waiting import until

pytestmark = pytest.mark.long

CLIENTS, ABORTS = 600, 60
REQUEST = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
# Closing sends a reset immediately and discards pending data.
RESET = struct.pack("ii", 1, 0)


def abort(address: tuple[str, int], read_bytes: int) -> None:
    with socket.create_connection(address, timeout=10) as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.sendall(REQUEST)
        peer.recv(read_bytes)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


def test_aborted_scrapes_do_not_affect_other_clients(tmp_path: Path) -> None:
    path = str(tmp_path / "s.sock")
    environment = {"GPUCOMMONS_SCHEDULER_SOCKET": path, "NVSHARE_SCHEDULING_MODE": "serial"}
    with running_agent("--scheduler", environment=environment) as agent:
        found = urllib.parse.urlsplit(agent.url)
        address = (str(found.hostname), found.port or 0)
        holder, waiter, *crowd = (Scripted(path).register(f"pod-{number}") for number in range(CLIENTS))

        def shown() -> int:
            body = agent.get("/metrics/nvshare")[1]
            return int(sum(value for (name, _), value in parsed(body).items() if name == "nvshare_client_info"))

        def descriptors() -> int:
            return len(os.listdir(f"/proc/{agent.process.pid}/fd"))

        until(lambda: shown() == CLIENTS, "all clients are shown")
        before = descriptors()
        holder.ask().granted()
        for number in range(ABORTS):
            abort(address, 1 + 977 * (number % 7))
            waiter.ask()
            holder.release()
            waiter.granted()
            holder, waiter = waiter, holder
        assert shown() == CLIENTS
        until(lambda: descriptors() <= before, "their sockets are closed")
        assert agent.stop() == 0
        assert not [line for line in agent.lines if "Traceback" in line or "rror" in line], agent.lines
        assert len(crowd) == CLIENTS - 2
