"""The page's files, read once at the start and then handed out: no build step, nothing from another host.

Each has an ETag of its content, so that a browser that has it is told so in a few bytes.
"""

import gzip
import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from html import escape
from importlib.resources import files
from importlib.resources.abc import Traversable

from gpucommons.model.snapshot import Snapshot
from gpucommons.web.routes.app import Request, Route
from gpucommons.web.routes.negotiation import wants_gzip
from gpucommons.web.routes.response import CLOSED_POLICY, Response, matches_etag

BASE = "/static"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Scripts, styles and requests of our own host alone; nothing that stands in the page itself may run.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " + CLOSED_POLICY
)

# Indentation, and lines that are a comment: good for who reads the source, bytes for who loads the page. The lines
# themselves stay, so that a browser counts them as the source does.
_FOR_READERS = re.compile(rb"^[ \t]+(?://.*)?|^//.*", re.MULTILINE)
_VENDORED = "vendor/"


@dataclass(frozen=True, slots=True)
class StaticFile:
    content_type: str
    plain: bytes
    compressed: bytes
    etag: str

    @classmethod
    def of(cls, name: str, plain: bytes) -> "StaticFile":
        content_type = _TYPES[name[name.rindex(".") :]]
        if name.endswith(".js") and not name.startswith(_VENDORED):
            plain = _FOR_READERS.sub(b"", plain)
        digest = hashlib.sha256(plain).hexdigest()[:20]
        return cls(content_type, plain, gzip.compress(plain, 9, mtime=0), f'"{digest}"')

    def reply(self, asked: Request) -> Response:
        headers = {"ETag": self.etag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        if matches_etag(asked.if_none_match, self.etag):
            return Response(b"", self.content_type, 304, headers)
        if wants_gzip(asked.accept_encoding):
            return Response(self.compressed, self.content_type, headers={**headers, "Content-Encoding": "gzip"})
        return Response(self.plain, self.content_type, headers=headers)


def static_files() -> dict[str, StaticFile]:
    """Every file of the page by its path below `static/`."""
    root = files("gpucommons.web") / "static"
    return {name: StaticFile.of(name, file.read_bytes()) for name, file in _walk(root, "")}


def _walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        name = f"{prefix}{entry.name}"
        if entry.is_dir():
            yield from _walk(entry, f"{name}/")
        elif name[name.rfind(".") :] in _TYPES:
            yield name, entry


def page_routes(latest: Callable[[], Snapshot | None]) -> dict[str, Route]:
    found = static_files()
    index = found.pop("index.html").plain
    routes = {f"{BASE}/{name}": Route("static", "a file of the page", file.reply) for name, file in found.items()}
    routes["/"] = Route("page", "this node at a glance", partial(_index, index, latest))
    return routes


def _index(index: bytes, latest: Callable[[], Snapshot | None], asked: Request) -> Response:
    """The one place where the page's text is made here: so that it is true before a script has run."""
    snapshot = latest()
    hostname = "" if snapshot is None else escape(snapshot.hostname)
    simulated = ""
    if snapshot is not None and snapshot.scenario:
        simulated = f"SIMULATED: scenario {escape(snapshot.scenario)}, nothing here is measured"
    body = index.replace(b"{hostname}", hostname.encode(errors="replace"))
    body = body.replace(b"{simulated}", simulated.encode(errors="replace"))
    headers = {"Content-Security-Policy": _POLICY, "Vary": "Accept-Encoding"}
    if wants_gzip(asked.accept_encoding):
        body, headers["Content-Encoding"] = gzip.compress(body, 6, mtime=0), "gzip"
    return Response(body, _TYPES[".html"], headers=headers)
