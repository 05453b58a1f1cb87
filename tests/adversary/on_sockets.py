"""Attacks over the sockets of a running agent. Each returns what it sent and what came back."""

import base64
import contextlib
import json
import random
import socket
from collections import Counter

from adversary.budget import Budget
from adversary.victim import PASSWORD, Victim
from cli.test_hostile_names import assert_harmless
from gpucommons.config.runtime_directory import control_path
from gpucommons.scheduler.protocol.wire import MessageType, Version, encode
from parsing import parsed
from running import command_process
from scheduler.served import Scripted
from waiting import until

_PATIENCE_S = 20.0
# Clears the screen, sets the title, reverses the text, begins a line, closes a label, is a formula.
NASTY = (
    "\x1b[2J",
    "\x1b]0;t\x07",
    "\x9b31m",
    "\r",
    "\n",
    "\u202e",
    "\u2066",
    "\u200b",
    '"}',
    "\\",
    "=1+1",
    "²",
    "\x00",
    "é",
)
METHODS = ("GET", "POST", "HEAD", "PUT", "OPTIONS", "G\x00T", "get", "A" * 300, "")
SERVED = ("/", "/metrics", "/metrics/node", "/api/v1/snapshot", "/api/v1/who?gpu=0", "/api/v1/history", "/healthz")
PATHS = (
    "/api/v1/stream",
    "/api/v1/history?series=%ff&points=-1",
    "/api/v1/events?since=" + "9" * 400,
    "/%00",
    "/..%2f..%2fetc/passwd",
    "*",
    "http://evil/",
    "/" + "a" * 9000,
)
VERSIONS = ("HTTP/1.1", "HTTP/1.0", "HTTP/9.9", "HTTP", "")
HEADERS = (
    "Host: localhost",
    "Host: evil.example",
    "Content-Length: 5",
    "Content-Length: -1",
    "Content-Length: 99999999999999999999",
    "Transfer-Encoding: chunked",
    "Expect: 100-continue",
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Authorization: Basic \xff",
    "Accept: " + ",".join(["text/plain;q=0.1"] * 200),
    "Accept-Encoding: gzip;q=x",
    "X" * 9000 + ": 1",
    ": empty",
    "no colon",
)


def mutated_frames(victim: Victim, budget: Budget) -> Counter[str]:
    """Valid conversations of clients with changed, cut, repeated and random bytes."""
    counts: Counter[str] = Counter()
    dice = budget.dice
    with victim.in_use(counts):
        for _ in budget:
            version: Version = dice.choice((1, 2))
            types = dice.choices(tuple(MessageType), k=dice.randrange(1, 8))
            frames = [encode(version, MessageType.REGISTER, pod="eve", namespace="evil", gpu=hostile_name(dice, 20))]
            frames += [encode(version, type, memory_usage_bytes=dice.getrandbits(64)) for type in types]
            data = _changed(dice, b"".join(frames))
            counts["frames"] += len(frames)
            with socket.socket(socket.AF_UNIX) as peer, contextlib.suppress(OSError):
                peer.settimeout(_PATIENCE_S)
                peer.connect(victim.socket_path)
                peer.sendall(data)
                peer.shutdown(socket.SHUT_WR)
                while peer.recv(65536):
                    counts["answers"] += 1
    return counts


def _changed(dice: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(dice.choice((0, 1, 1, 3, 20))):
        at = dice.randrange(len(changed))
        match dice.randrange(4):
            case 0:
                changed[at] = dice.randrange(256)
            case 1:
                changed[at : at + dice.randrange(300)] = dice.randbytes(dice.randrange(300))
            case 2:
                del changed[at : at + dice.randrange(1, 50)]
            case 3:
                changed[at:at] = changed[: dice.randrange(700)]
        changed = changed or bytearray(b"\x00")
    return bytes(changed)


def random_requests(victim: Victim, budget: Budget) -> Counter[str]:
    """HTTP requests put together from valid, invalid and random parts."""
    counts: Counter[str] = Counter()
    dice = budget.dice
    with victim.in_use(counts):
        for _ in budget:
            requests = [_request(dice) for _ in range(dice.choice((1, 1, 3)))]
            counts["requests"] += len(requests)
            with _connected(victim, dice) as peer, contextlib.suppress(OSError):
                peer.sendall(b"".join(requests))
                peer.shutdown(socket.SHUT_WR)
                # The first part: a stream does not end.
                answer = peer.recv(65536)
                status = answer[9:12].decode("latin-1") if answer.startswith(b"HTTP/1.") else "none"
                assert status != "500", answer[:500]
                counts[f"answered {status}"] += 1
    return counts


def _request(dice: random.Random) -> bytes:
    """Most parts are valid: one invalid part has a request refused before the others are looked at."""

    def part(valid: str, others: tuple[str, ...]) -> str:
        return valid if dice.random() < 0.9 else dice.choice(others)

    path = dice.choice(PATHS if dice.random() < 0.3 else SERVED)
    lines = [" ".join((part("GET", METHODS), path, part("HTTP/1.1", VERSIONS)))]
    lines += [part("Host: localhost", HEADERS), part(f"Authorization: {PASSWORD}", HEADERS)]
    lines += dice.choices(HEADERS, k=dice.choice((0, 0, 0, 1, 5)))
    data = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
    # The parser refuses a request together with bytes after it that are none.
    data += dice.randbytes(dice.randrange(400)) if dice.random() < 0.1 else b""
    return _changed(dice, data) if dice.random() < 0.2 else data


def slow_readers(victim: Victim, budget: Budget) -> Counter[str]:
    """Peers with the password that ask for large answers and streams and do not read."""
    counts: Counter[str] = Counter()
    request = b"GET %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: " + PASSWORD.encode() + b"\r\n\r\n"
    paths = (b"/metrics", b"/api/v1/stream", b"/api/v1/snapshot")
    with victim.in_use(counts), contextlib.ExitStack() as peers:
        for _ in budget:
            peer = peers.enter_context(_connected(victim, budget.dice, receive_buffer=2048))
            counts["readers"] += 1
            with contextlib.suppress(OSError):
                peer.sendall(request % budget.dice.choice(paths) * 3)
            if counts["readers"] % 200 == 0:
                peers.close()
    return counts


def connection_floods(victim: Victim, budget: Budget) -> Counter[str]:
    """More idle connections than the agent accepts, from several addresses, some with half a request."""
    counts: Counter[str] = Counter()
    with victim.in_use(counts), contextlib.ExitStack() as peers:
        for _ in budget:
            for _ in range(50):
                peer = peers.enter_context(_connected(victim, budget.dice))
                counts["connections"] += 1
                beginning = budget.dice.choice((b"", b"GET /metrics HTTP/1.1\r\nHost: l", b"GET / HTTP/1.1\r\n\r\n"))
                with contextlib.suppress(OSError):
                    peer.sendall(beginning)
            if counts["connections"] % 700 == 0:
                peers.close()
    return counts


def password_guessers(victim: Victim, budget: Budget) -> Counter[str]:
    """Wrong passwords, 32 connections at a time. The honest scraper has the right one."""
    counts: Counter[str] = Counter()
    with victim.in_use(counts):
        for _ in budget:
            with contextlib.ExitStack() as stack:
                peers = [stack.enter_context(_connected(victim, budget.dice)) for _ in range(32)]
                for peer in peers:
                    guess = base64.b64encode(b"prometheus:" + budget.dice.randbytes(8).hex().encode())
                    with contextlib.suppress(OSError):
                        peer.sendall(b"GET /metrics HTTP/1.0\r\nAuthorization: Basic " + guess + b"\r\n\r\n")
                        counts["guesses"] += 1
                for peer in peers:
                    with contextlib.suppress(OSError):
                        answer = _read(peer)
                        assert b" 200 " not in answer[:20], "a guess was accepted"
    return counts


def control_loops(victim: Victim, budget: Budget) -> Counter[str]:
    """Requests for the status in a loop, nested JSON, long lines and garbage on the control socket."""
    counts: Counter[str] = Counter()
    dice = budget.dice
    deep = (b"[" * 3000, b'{"command":' * 300, b"[" * 3000 + b"]" * 3000)
    lines = (
        b'{"command": "status"}',
        *deep,
        b"x" * 5000,
        b"null",
        b'{"command": {}}',
        b'{"command": "explain", "x": 1e999}',
    )
    with victim.in_use(counts):
        for _ in budget:
            with socket.socket(socket.AF_UNIX) as peer, contextlib.suppress(OSError):
                peer.settimeout(_PATIENCE_S)
                peer.connect(control_path(victim.socket_path))
                line = b'{"command": "status"}' if dice.random() < 0.5 else dice.choice((*lines, dice.randbytes(50)))
                peer.sendall(line + b"\n")
                peer.shutdown(socket.SHUT_WR)
                counts["requests"] += 1
                reply = json.loads(_read(peer) or b"{}")
                counts["carried out" if reply.get("ok") else "refused" if reply else "closed"] += 1
    return counts


def hostile_names(victim: Victim, budget: Budget) -> Counter[str]:
    """Clients with names of control characters, quotes, formulas and many bytes, in every output."""
    counts: Counter[str] = Counter()
    with victim.in_use(counts):
        for number in budget:
            clients = []
            for _ in range(30):
                pod, namespace, gpu = (hostile_name(budget.dice, 60) for _ in range(3))
                # They request nothing: a client that holds the lock for too long is fenced, which is another attack.
                clients.append(Scripted(victim.socket_path).register(pod, namespace, gpu))
                counts["clients"] += 1
            ids = {client.id for client in clients}
            until(lambda ids=ids: ids <= _shown_clients(victim), "the clients are in a snapshot")  # type: ignore[misc]
            parsed(victim.scrape())
            if number % 10 == 0:
                for arguments in (("status",), ("status", "--json"), ("explain", clients[0].id)):
                    done = command_process("scheduler", *arguments, "--socket", victim.socket_path)
                    assert done.returncode == 0, done.stderr
                    assert_harmless(done.stdout, name=False)
                    counts["commands"] += 1
            for client in clients:
                client.close()
    return counts


def _shown_clients(victim: Victim) -> set[str]:
    return set(json.loads(victim.scrape("/api/v1/turns"))["turns"]["clients"])


def hostile_name(dice: random.Random, most: int) -> str:
    length = dice.choice((1, 1, dice.randrange(most)))
    name = "".join(dice.choice((*NASTY, "a", "0")) for _ in range(length))
    # A field of a frame ends at the first zero byte.
    return name.replace("\x00", "") if dice.random() < 0.9 else name


def _connected(victim: Victim, dice: random.Random, receive_buffer: int | None = None) -> socket.socket:
    peer = socket.socket()
    if receive_buffer is not None:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    peer.settimeout(_PATIENCE_S)
    peer.bind((f"127.0.0.{dice.randrange(2, 6)}", 0))
    peer.connect(victim.address)
    return peer


def _read(peer: socket.socket, most: int = 1 << 20) -> bytes:
    """What arrives until the agent closes the connection, or the first part of a long answer."""
    data = b""
    while len(data) < most and (more := peer.recv(65536)):
        data += more
    return data
