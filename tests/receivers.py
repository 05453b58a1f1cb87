"""Receivers of messages and alerts: a mail server, a webhook, and a server that accepts connections and never answers.

The mail server can require STARTTLS and a login, the webhook a token.
"""

import email
import email.message
import email.policy
import json
import socket
import socketserver
import ssl
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from prometheus_server import free_port

USER, PASSWORD, TOKEN = "gpus", "mail-secret", "hook-secret"


class Mailbox:
    """What an SMTP server took. It refuses recipients whose address begins with `unknown`, and for now `full`.

    A `guarded` one takes only what arrives over TLS after a login.
    """

    def __init__(self, *, guarded: bool) -> None:
        self.recipients: list[str] = []
        self.mails: list[email.message.EmailMessage] = []
        self._guarded = guarded

    async def handle_RCPT(  # noqa: N802
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if address.startswith("unknown"):
            return "550 no such user"
        if address.startswith("full"):
            return "452 the mailbox is full"
        envelope.rcpt_tos.append(address)
        return "250 taken"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802
        if self._guarded:
            assert session.ssl is not None
            assert session.authenticated
        content = envelope.original_content or b""
        self.recipients += envelope.rcpt_tos
        self.mails.append(email.message_from_bytes(content, policy=email.policy.default))
        return "250 taken"

    def texts(self) -> list[str]:
        """Of mails that are plain text: each as one line."""
        return [" ".join(str(mail.get_content()).split()) for mail in self.mails]

    @property
    def subjects(self) -> list[str]:
        return [str(mail["Subject"]) for mail in self.mails]

    def body(self, subject_part: str) -> str:
        """All texts of the first mail with this in its subject."""
        (first, *_) = [mail for mail in self.mails if subject_part in str(mail["Subject"])]
        return "".join(part.get_content() for part in first.walk() if part.get_content_maintype() == "text")


@contextmanager
def mailbox(port: int | None = None, tls: ssl.SSLContext | None = None) -> Iterator[tuple[Mailbox, str]]:
    """The mailbox, and HOST:PORT of its server. With `tls` it requires STARTTLS and a login as USER."""
    box = Mailbox(guarded=tls is not None)
    guard = {} if tls is None else _guard(tls)
    controller = Controller(box, hostname="127.0.0.1", port=port or free_port(), **guard)
    controller.start()
    try:
        # Certificates are for the name.
        yield box, f"{'127.0.0.1' if tls is None else 'localhost'}:{controller.port}"
    finally:
        controller.stop()


def _guard(tls: ssl.SSLContext) -> dict[str, Any]:
    def authenticate(server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
        known = isinstance(data, LoginPassword) and (data.login, data.password) == (USER.encode(), PASSWORD.encode())
        return AuthResult(success=known, handled=known)

    return {
        "tls_context": tls,
        "require_starttls": True,
        "authenticator": authenticate,
        "auth_required": True,
        # Alertmanager expects other prompts for LOGIN than this server sends; real servers offer PLAIN as well.
        "auth_exclude_mechanism": ["LOGIN"],
    }


class Hook:
    """`bodies` are those that were taken. `statuses` are the answers to the next requests; then 200."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.statuses: list[int] = []
        self.requests = 0

    @property
    def texts(self) -> list[str]:
        """Of the agent's messages."""
        return [str(body["text"]) for body in self.bodies]

    def groups(self, alertname: str) -> list[dict[str, Any]]:
        """Of Alertmanager's notifications: those of this alert."""
        return [body for body in self.bodies if body["groupLabels"].get("alertname") == alertname]


@contextmanager
def hook(token: str | None = None) -> Iterator[tuple[Hook, str]]:
    """The hook and its address. With `token` it answers requests without it with 401."""
    made = Hook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if token is not None and self.headers["Authorization"] != f"Bearer {token}":
                status = 401
            else:
                status = made.statuses.pop(0) if made.statuses else 200
            if status == 200:
                made.bodies.append(body)
            made.requests += 1
            self.send_response(status)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield made, f"http://127.0.0.1:{server.server_port}/services/T0/B0/secret"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def scripted_mail_server(answers: dict[str, str]) -> Iterator[tuple[list[bytes], int]]:
    """The mails that it took, and its port. It answers a command with its line of `answers`, else with 250."""
    mails: list[bytes] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.say("220 here")
            while command := self.rfile.readline().decode().upper().split():
                self.say("354 go on" if command[0] == "DATA" else answers.get(command[0], "250 yes"))
                if command[0] == "DATA":
                    mails.append(b"".join(iter(self.rfile.readline, b".\r\n")))
                    self.say(answers.get("DATA", "250 taken"))

        def say(self, line: str) -> None:
            with suppress(OSError):
                self.wfile.write(f"{line}\r\n".encode())

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield mails, server.server_address[1]
        finally:
            server.shutdown()


@contextmanager
def slow_mail_server(parts: Iterable[bytes], pause_s: float) -> Iterator[int]:
    """The port of a server that says these parts, one by one."""
    ended = threading.Event()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                for part in parts:
                    self.request.sendall(part)
                    if ended.wait(pause_s):
                        return

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_address[1]
        finally:
            ended.set()
            server.shutdown()


@contextmanager
def silent_server() -> Iterator[int]:
    """The port of a server that never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@contextmanager
def raw_server(answer: bytes) -> Iterator[tuple[list[bytes], int]]:
    """The first bytes of each request, and the port. It answers with these bytes, whatever they are, and says no more
    until the other side closes."""
    requests: list[bytes] = []

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            requests.append(self.request.recv(65_536))
            with suppress(OSError):
                self.request.sendall(answer)
                while self.request.recv(65_536):
                    pass

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield requests, server.server_address[1]
        finally:
            server.shutdown()
