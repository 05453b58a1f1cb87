"""Receivers of alerts: a mail server that requires STARTTLS and a login, and a webhook with a token."""

import email
import email.message
import email.policy
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from prometheus_server import free_port

USER, PASSWORD, TOKEN = "gpus", "mail-secret", "hook-secret"


class MailSink:
    """`messages` arrived over TLS after a login; the server refuses others."""

    def __init__(self) -> None:
        self.messages: list[email.message.EmailMessage] = []

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802
        assert session.ssl is not None
        assert session.authenticated
        content = envelope.original_content or b""
        self.messages.append(email.message_from_bytes(content, policy=email.policy.default))
        return "250 taken"

    @property
    def subjects(self) -> list[str]:
        return [str(message["Subject"]) for message in self.messages]

    def body(self, subject_part: str) -> str:
        (first, *_) = [message for message in self.messages if subject_part in str(message["Subject"])]
        return "".join(part.get_content() for part in first.walk() if part.get_content_maintype() == "text")


@contextmanager
def mail_sink(tls: ssl.SSLContext) -> Iterator[tuple[MailSink, str]]:
    def authenticate(server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
        known = isinstance(data, LoginPassword) and (data.login, data.password) == (USER.encode(), PASSWORD.encode())
        return AuthResult(success=known, handled=known)

    sink = MailSink()
    controller = Controller(
        sink,
        hostname="127.0.0.1",
        port=free_port(),
        tls_context=tls,
        require_starttls=True,
        authenticator=authenticate,
        auth_required=True,
        # Alertmanager expects other prompts for LOGIN than this server sends; real servers offer PLAIN as well.
        auth_exclude_mechanism=["LOGIN"],
    )
    controller.start()
    try:
        yield sink, f"localhost:{controller.port}"
    finally:
        controller.stop()


class HookSink:
    """`posts` are the bodies of requests with the token."""

    def __init__(self) -> None:
        self.posts: list[dict[str, Any]] = []

    def groups(self, alertname: str) -> list[dict[str, Any]]:
        return [post for post in self.posts if post["groupLabels"].get("alertname") == alertname]


@contextmanager
def hook_sink() -> Iterator[tuple[HookSink, str]]:
    sink = HookSink()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            welcome = self.headers["Authorization"] == f"Bearer {TOKEN}"
            if welcome:
                sink.posts.append(json.loads(body))
            self.send_response(200 if welcome else 401)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield sink, f"http://127.0.0.1:{server.server_port}/alerts"
    finally:
        server.shutdown()
        server.server_close()
