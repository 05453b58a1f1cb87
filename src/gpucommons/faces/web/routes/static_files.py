"""The page's files, read once at the start: no build step, nothing from another host.

Each has an ETag of its content, so that a browser does not load a file again that it has.
"""

import gzip
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gpucommons.base.text import escape
from gpucommons.faces.web.routes.request import CLOSED_POLICY, Request, Response, accepts_gzip, gzip_body, matches_etag
from gpucommons.model.snapshot import Snapshot

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Scripts, styles and requests of this host only, and no inline code.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " + CLOSED_POLICY
)

# Indentation and comment lines are not served. Empty lines stay in their place, so that line numbers match the source.
_NOT_SERVED = re.compile(rb"^[ \t]+(?://.*)?|^//.*", re.MULTILINE)
_VENDORED = "vendor/"


@dataclass(frozen=True, slots=True)
class StaticFile:
    content_type: str
    compressed: bytes
    etag: str

    @classmethod
    def of(cls, name: str, plain: bytes) -> "StaticFile":
        content_type = _TYPES[name[name.rindex(".") :]]
        if name.endswith(".js") and not name.startswith(_VENDORED):
            plain = _NOT_SERVED.sub(b"", plain)
        digest = hashlib.sha256(plain).hexdigest()[:20]
        return cls(content_type, gzip_body(plain, 9), f'"{digest}"')

    @property
    def plain(self) -> bytes:
        """Not kept: every browser accepts gzip."""
        return gzip.decompress(self.compressed)

    def endpoint(self, request: Request) -> Response:
        headers = {"ETag": self.etag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        if matches_etag(request.if_none_match, self.etag):
            return Response(b"", self.content_type, 304, headers)
        if accepts_gzip(request.accept_encoding):
            return Response(self.compressed, self.content_type, headers={**headers, "Content-Encoding": "gzip"})
        return Response(self.plain, self.content_type, headers=headers)


@cache
def static_files() -> Mapping[str, StaticFile]:
    """Every file of the page by its path below `static/`. All listeners share them."""
    root = Path(__file__).parent.parent / "static"
    named = {str(file.relative_to(root)): file for file in sorted(root.rglob("*")) if file.suffix in _TYPES}
    return {name: StaticFile.of(name, file.read_bytes()) for name, file in named.items()}


def index_endpoint(
    index: StaticFile, latest: Callable[[], Snapshot | None], fleet_path: str = ""
) -> Callable[[Request], Response]:
    """`fleet_path` is where the page of the fleet is; empty where there is none."""
    plain = index.plain
    return lambda request: _index(plain, latest(), fleet_path, request)


def _index(index: bytes, snapshot: Snapshot | None, fleet_path: str, request: Request) -> Response:
    """Fills in the host name and the scenario, so that both are right before a script has run."""
    hostname = "" if snapshot is None else escape(snapshot.hostname)
    simulated = ""
    if snapshot is not None and snapshot.scenario:
        simulated = f"SIMULATED: scenario {escape(snapshot.scenario)}, nothing here is measured"
    body = index.replace(b"{hostname}", hostname.encode(errors="replace"))
    body = body.replace(b"{simulated}", simulated.encode(errors="replace"))
    body = body.replace(b"{fleet}", fleet_path.encode())
    headers = {"Content-Security-Policy": _POLICY, "Vary": "Accept-Encoding"}
    if accepts_gzip(request.accept_encoding):
        body, headers["Content-Encoding"] = gzip_body(body, 6), "gzip"
    return Response(body, _TYPES[".html"], headers=headers)
