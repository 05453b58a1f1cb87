"""A client of an agent's API: blocking, one request at a time, small. It imports nothing that takes long to import.

Follows no redirect, uses no proxy variable, and reads no more than a bounded answer within a bounded time.
"""

import json
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gpucommons.base.address import UNIX_PREFIX, parse_unix_address
from gpucommons.cli.command_line import CommandError

if TYPE_CHECKING:
    import ssl
    from http.client import HTTPConnection, HTTPResponse

Document = Mapping[str, Any]

_BASE = "/api/v1/"
_TIMEOUT_S = 5.0
# An agent that has just started has no sample yet.
FIRST_SAMPLE_S = 10.0
_RETRY_S = 0.2
_MAX_BYTES = 64 << 20
_PIECE_BYTES = 64 << 10
_LONGEST_REASON = 200
_AGENT = "gpucommons"


class NoAnswer(Exception):
    """The agent did not give its document: one line with the address and why."""


class PasswordRequired(NoAnswer):
    """An agent answers, but not without a password."""


class ReadFailed(CommandError):
    """The agent answers, but what its document needs cannot be read: the ledger, or Prometheus."""


class BadRequest(Exception):
    """The agent refuses a parameter: one line that names it."""


class AgentAddress(NamedTuple):
    """`url` is http://HOST:PORT, https://HOST:PORT or unix:/PATH. `credentials` are USER:PASSWORD.

    With `only_agents`, an answer of any other program counts as none: for an address that was not named by the user.
    """

    url: str
    credentials: str = ""
    ca_file: str = ""
    only_agents: bool = False

    @property
    def socket_path(self) -> str:
        return self.url.removeprefix(UNIX_PREFIX) if self.url.startswith(UNIX_PREFIX) else ""

    @property
    def base(self) -> str:
        """The URL below which the API is. The host of a Unix socket is not looked at."""
        return "http://agent" if self.socket_path else self.url.rstrip("/")

    def headers(self) -> dict[str, str]:
        if not self.credentials:
            return {}
        from base64 import b64encode

        return {"Authorization": f"Basic {b64encode(self.credentials.encode()).decode()}"}

    def tls(self) -> "ssl.SSLContext | None":
        """None where the connection is not encrypted. Raises CommandError for a CA file that cannot be read."""
        if not self.url.startswith("https:"):
            return None
        import ssl

        try:
            return ssl.create_default_context(cafile=self.ca_file or None)
        except OSError as error:
            raise CommandError(
                f"--ca-file: {self.ca_file}: {error.strerror or error}; name a PEM file of certificates"
            ) from error


def named_address(connect: str, password_file: Path | None, ca_file: Path | None) -> AgentAddress:
    """The address of --connect. Raises CommandError."""
    url = f"{UNIX_PREFIX}{connect}" if connect.startswith("/") else connect
    try:
        if url.startswith(UNIX_PREFIX):
            parse_unix_address(url)
        else:
            from gpucommons.config.option import check_url

            check_url(url)
    except ValueError as error:
        raise CommandError(f"--connect: {error}") from error
    return AgentAddress(url, _credentials(password_file), str(ca_file or ""))


def get(
    address: AgentAddress, name: str, parameters: Mapping[str, str] | None = None, within_s: float = FIRST_SAMPLE_S
) -> Document:
    """One document of the API. Raises NoAnswer, BadRequest or CommandError."""
    deadline_s = time.monotonic() + within_s
    timeout_s = min(_TIMEOUT_S, within_s)
    while True:
        try:
            status, body = _request(address, name, parameters or {}, timeout_s)
        except TimeoutError:
            raise NoAnswer(f"{address.url} does not answer within {timeout_s:g} s") from None
        except OSError as error:
            raise NoAnswer(f"{address.url}: {error.strerror or error}") from error
        if status != 503 or time.monotonic() > deadline_s:
            return _document(address, name, status, body)
        time.sleep(_RETRY_S)


def _request(address: AgentAddress, name: str, parameters: Mapping[str, str], timeout_s: float) -> tuple[int, bytes]:
    from http.client import HTTPException
    from urllib.parse import urlencode, urlsplit

    query = f"?{urlencode(parameters)}" if parameters else ""
    path = f"{urlsplit(address.base).path}{_BASE}{name}{query}"
    deadline_s = time.monotonic() + timeout_s
    connection = _connection(address, timeout_s)
    try:
        connection.request("GET", path, headers=address.headers())
        response = connection.getresponse()
        if address.only_agents and response.headers.get("Server") != _AGENT:
            raise NoAnswer(f"{address.url} is not an agent of gpucommons")
        return response.status, _body(response, deadline_s)
    except HTTPException as error:
        raise NoAnswer(f"{address.url} does not speak HTTP: {type(error).__name__}") from error
    finally:
        connection.close()


def _connection(address: AgentAddress, timeout_s: float) -> "HTTPConnection":
    from http.client import HTTPConnection, HTTPSConnection
    from urllib.parse import urlsplit

    if address.socket_path:
        connection = HTTPConnection("agent", timeout=timeout_s)
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.sock = connected
        connected.settimeout(timeout_s)
        try:
            connected.connect(address.socket_path)
        except OSError:
            connected.close()
            raise
        return connection
    parts, tls = urlsplit(address.base), address.tls()
    host = parts.hostname or ""
    if tls is not None:
        return HTTPSConnection(host, parts.port, timeout=timeout_s, context=tls)
    return HTTPConnection(host, parts.port, timeout=timeout_s)


def _body(response: "HTTPResponse", deadline_s: float) -> bytes:
    parts: list[bytes] = []
    size = 0
    while piece := response.read(_PIECE_BYTES):
        size += len(piece)
        if time.monotonic() > deadline_s:
            raise TimeoutError
        if size > _MAX_BYTES:
            raise OSError(f"an answer of more than {_MAX_BYTES >> 20} MiB")
        parts.append(piece)
    return b"".join(parts)


def _document(address: AgentAddress, name: str, status: int, body: bytes) -> Document:
    if status == 401:
        raise PasswordRequired(f"{address.url} requires a password: use --connect {address.url} --password-file FILE")
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    if status == 200 and isinstance(document, dict):
        return document
    reason = document.get("error") if isinstance(document, dict) else body.decode("utf-8", "replace")
    if status == 400:
        # A parameter has the name of the option that it was given by.
        option = document.get("parameter") if isinstance(document, dict) else None
        line = str(reason).removeprefix(f"parameter {option!r}: ")
        raise BadRequest(f"--{option}: {line}" if option else line)
    if status == 502:
        raise ReadFailed(f"{address.url}: {reason}")
    if status == 404:
        raise NoAnswer(f"{address.url} has no {_BASE}{name}: it is not an agent, or older than this command")
    why = "an answer that is not a document" if status == 200 else f"status {status}: {str(reason).strip()}"
    raise NoAnswer(f"{address.url} sent {why[:_LONGEST_REASON]}")


def _credentials(file: Path | None) -> str:
    if file is None:
        return ""
    try:
        line = file.read_text("utf-8").partition("\n")[0].strip()
    except OSError as error:
        raise CommandError(f"--password-file: {file}: {error.strerror}; name a readable file") from error
    except UnicodeDecodeError as error:
        raise CommandError(f"--password-file: {file}: not UTF-8; write USER:PASSWORD in its first line") from error
    if ":" not in line:
        raise CommandError(f"--password-file: {file}: no colon; write USER:PASSWORD in its first line")
    return line
