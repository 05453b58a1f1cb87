"""Receivers of messages: a mail server, a webhook, and a server that accepts connections and never answers."""

import email
import email.message
import email.policy
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, Envelope, Session

from prometheus_server import free_port


class Mailbox:
    """A plain SMTP server on loopback. It refuses recipients whose address begins with `unknown`."""

    def __init__(self) -> None:
        self.recipients: list[str] = []
        self.mails: list[email.message.EmailMessage] = []

    async def handle_RCPT(  # noqa: N802
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if address.startswith("unknown"):
            return "550 no such user"
        envelope.rcpt_tos.append(address)
        return "250 taken"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802
        content = envelope.original_content or b""
        self.recipients += envelope.rcpt_tos
        self.mails.append(email.message_from_bytes(content, policy=email.policy.default))
        return "250 taken"

    def texts(self) -> list[str]:
        return [" ".join(str(mail.get_content()).split()) for mail in self.mails]


@contextmanager
def mailbox(port: int | None = None) -> Iterator[tuple[Mailbox, str]]:
    """The mailbox, and HOST:PORT of its server."""
    box = Mailbox()
    controller = Controller(box, hostname="127.0.0.1", port=port or free_port())
    controller.start()
    try:
        yield box, f"127.0.0.1:{controller.port}"
    finally:
        controller.stop()


class Hook:
    """`texts` are those that were taken. `statuses` are the answers to the next requests; then 200."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.statuses: list[int] = []
        self.requests = 0


@contextmanager
def hook() -> Iterator[tuple[Hook, str]]:
    made = Hook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status = made.statuses.pop(0) if made.statuses else 200
            if status == 200:
                made.bodies.append(body)
                made.texts.append(str(body["text"]))
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
def silent_server() -> Iterator[int]:
    """The port of a server that never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]
