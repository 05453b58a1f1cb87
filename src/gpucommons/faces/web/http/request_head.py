"""The heads of the requests in the bytes of one connection. Pure: bytes in, values out.

httptools parses (llhttp, the parser of Node.js). It does not stop between two requests, so it gets the bytes of one
head at a time, up to the empty line. A body is never read: what follows the head of a request with one is not parsed.

The bytes of a head, the number of its fields and each field are limited. What is malformed or too long is a
RequestError; nothing that follows it on the connection can be parsed.

A scraper sends the same bytes with every scrape. A head that comes in one piece is remembered, except for one with a
password, and is not parsed again.
"""

from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

MAX_HEAD_BYTES = 64 * 1024
MAX_FIELDS = 128
_MAX_KNOWN = 64
_MAX_KNOWN_BYTES = 2048
_END = b"\r\n\r\n"
# The fields that are used here. llhttp reads Connection.
_USED = frozenset(
    (
        b"accept",
        b"accept-encoding",
        b"authorization",
        b"content-length",
        b"host",
        b"if-none-match",
        b"transfer-encoding",
    )
)


class RequestError(Exception):
    """What the peer gets instead of a response: a status and one line."""

    def __init__(self, status: int, line: str) -> None:
        super().__init__(line)
        self.status = status
        self.line = line


class RequestHead(NamedTuple):
    """`path` is decoded, and empty for CONNECT. `host` is None where HTTP/1.0 sends none."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...]
    host: str | None
    authorization: str
    accept: str
    accept_encoding: str
    if_none_match: str
    is_http_1_0: bool
    keeps_alive: bool
    has_body: bool


class _RequestLine(NamedTuple):
    method: str
    version: str
    keeps_alive: bool


class HeadParser:
    """Give it what the peer sends with `feed`, and take the heads with `next_head`. `known` are remembered heads, which
    connections share.

    `release` ends its use: the parser of httptools and this object refer to each other.
    """

    __slots__ = (
        "_data",
        "_error",
        "_field_count",
        "_fields",
        "_head_bytes",
        "_known",
        "_line",
        "_max_field_bytes",
        "_parser",
        "_position",
        "_tail",
        "_url",
    )

    def __init__(self, max_field_bytes: int, known: dict[bytes, RequestHead]) -> None:
        self._max_field_bytes = max_field_bytes
        self._known = known
        self._parser: HttpRequestParser | None = HttpRequestParser(self)
        self._data = b""
        self._position = 0
        self._begin_head()

    def _begin_head(self) -> None:
        self._url = b""
        self._fields: dict[bytes, bytes] = {}
        self._field_count = 0
        self._head_bytes = 0
        self._error = ""
        self._line: _RequestLine | None = None
        # The last bytes of a head that has come in part: its end may have come in part, too.
        self._tail = b""

    def release(self) -> None:
        self._parser = None
        self._data = b""

    def feed(self, data: bytes) -> None:
        if self._position < len(self._data):
            data = self._data[self._position :] + data
        self._data, self._position = data, 0

    def next_head(self) -> RequestHead | None:
        """The next head; None if it has not come completely. Raises RequestError."""
        if self._position == 0 and not self._head_bytes:
            known = self._known.get(self._data)
            if known is not None:
                self._position = len(self._data)
                return known
        while self._parser is not None and self._position < len(self._data):
            piece = self._take_until_end_of_head()
            self._head_bytes += len(piece)
            if self._head_bytes > MAX_HEAD_BYTES:
                raise RequestError(400, f"the head of the request has more than {MAX_HEAD_BYTES} bytes")
            try:
                self._parser.feed_data(piece)
            except HttpParserUpgrade:
                # No other protocol is offered: the connection stays with this one.
                pass
            except HttpParserError as error:
                raise RequestError(400, f"malformed request: {error}") from None
            if self._error:
                raise RequestError(400, self._error)
            if self._line is not None:
                head = self._head(self._line)
                if piece is self._data and self._head_bytes == len(piece):
                    self._remember(piece, head)
                self._begin_head()
                return head
            self._tail = (self._tail + piece)[1 - len(_END) :]
        return None

    def _remember(self, data: bytes, head: RequestHead) -> None:
        if head.authorization or len(data) > _MAX_KNOWN_BYTES:
            return
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        self._known[data] = head

    def _take_until_end_of_head(self) -> bytes:
        """The data up to the next empty line; all of it if there is none."""
        data, start = self._data, self._position
        in_seam = (self._tail + data[start : start + len(_END) - 1]).find(_END)
        if in_seam >= 0:
            end = start + in_seam + len(_END) - len(self._tail)
        else:
            found = data.find(_END, start)
            end = len(data) if found < 0 else found + len(_END)
        self._position = end
        return data if start == 0 and end == len(data) else data[start:end]

    def _head(self, line: _RequestLine) -> RequestHead:
        if line.version not in ("1.0", "1.1"):
            raise RequestError(505, f"HTTP/{line.version} is not supported: use HTTP/1.1")
        fields = self._fields
        if b"host" not in fields and line.version == "1.1":
            raise RequestError(400, "malformed request: no Host field")
        path, query = _split_target(line.method, self._url.decode("latin-1"))
        return RequestHead(
            line.method,
            path,
            query,
            _text(fields[b"host"]) if b"host" in fields else None,
            _text(fields.get(b"authorization")),
            _text(fields.get(b"accept")),
            _text(fields.get(b"accept-encoding")),
            _text(fields.get(b"if-none-match")),
            line.version == "1.0",
            line.keeps_alive and line.method != "CONNECT",
            b"transfer-encoding" in fields or fields.get(b"content-length", b"0").strip(b"0") != b"",
        )

    # Called by httptools.

    def on_url(self, url: bytes) -> None:
        self._url += url
        if len(self._url) > self._max_field_bytes:
            self._error = f"the target of the request has more than {self._max_field_bytes} bytes"

    def on_header(self, name: bytes, value: bytes) -> None:
        self._field_count += 1
        if self._field_count > MAX_FIELDS:
            self._error = f"the request has more than {MAX_FIELDS} fields"
        if len(name) > self._max_field_bytes or len(value) > self._max_field_bytes:
            self._error = f"a field of the request has more than {self._max_field_bytes} bytes"
        name = name.lower()
        if name not in _USED:
            return
        before = self._fields.get(name)
        if before is None:
            self._fields[name] = value
        elif name == b"host":
            self._error = "malformed request: two Host fields"
        elif name != b"authorization":
            self._fields[name] = before + b"," + value

    def on_headers_complete(self) -> None:
        # Only now: llhttp forgets some of it with the end of the message.
        parser = self._parser
        if parser is not None:
            self._line = _RequestLine(
                parser.get_method().decode(), parser.get_http_version(), parser.should_keep_alive()
            )


def _split_target(method: str, target: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """The path and the query of a request target, decoded."""
    if method == "CONNECT":
        return "", ()
    if target.startswith("/") or target == "*":
        path, _, query = target.partition("#")[0].partition("?")
    else:
        # The absolute form, as for a proxy.
        try:
            parts = urlsplit(target)
        except ValueError:
            raise RequestError(400, "malformed request: the target is not a URL") from None
        path, query = parts.path or "/", parts.query
    return unquote(path) if "%" in path else path, tuple(parse_qsl(query, keep_blank_values=True)) if query else ()


def _text(value: bytes | None) -> str:
    """Any bytes are a value."""
    return "" if value is None else value.decode(errors="surrogateescape")
