"""Malformed requests do not make the agent grow."""

import socket
import urllib.parse

import pytest

from running import running_agent

pytestmark = pytest.mark.long

AT_ONCE, ROUNDS = 250, 16
# The collector's young generations do not free what lives through them, such as connections that wait in a crowd.
MALFORMED = b"GET /" + b"a" * 8000 + b" HTTP/9.9\r\n\r\n"
# With a cycle for each request, 4,000 of them made the agent grow by 80 MB.
ALLOWED_GROWTH_KB = 8 * 1024


def send_malformed(address: tuple[str, int], rounds: int) -> None:
    for _ in range(rounds):
        peers = [socket.create_connection(address, timeout=20) for _ in range(AT_ONCE)]
        for peer in peers:
            peer.sendall(MALFORMED)
        for peer in peers:
            while peer.recv(4096):
                pass
            peer.close()


def test_malformed_requests_do_not_make_the_agent_grow() -> None:
    with running_agent() as agent:
        found = urllib.parse.urlsplit(agent.url)
        address = (str(found.hostname), found.port or 0)
        send_malformed(address, 4)
        before = agent.rss_kb()
        send_malformed(address, ROUNDS)
        growth = agent.rss_kb() - before
        assert growth < ALLOWED_GROWTH_KB
        assert agent.stop() == 0
