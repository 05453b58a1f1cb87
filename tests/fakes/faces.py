"""A MetricsProvider with a body of the test's choice and a real Snapshot."""

import gzip as gzip_module
import time
from collections.abc import Iterable

from gpucommons.model.snapshot import Snapshot, SourceState

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def snapshot_now(*sources: SourceState, scenario: str | None = None, age_s: float = 0.0) -> Snapshot:
    return Snapshot(
        sequence=7,
        monotonic_s=time.monotonic() - age_s,
        wall_s=time.time() - age_s,
        hostname="node-1",
        scenario=scenario,
        sources={state.name: state for state in sources},
    )


class FakeFaces:
    """Every dialect has one line; `padding` makes the body as large as a test needs."""

    def __init__(
        self,
        snapshot: Snapshot | None = None,
        padding: int = 0,
        dialects: Iterable[str] = ("gpucommons", "node"),
    ) -> None:
        self.snapshot = snapshot if snapshot is not None else snapshot_now()
        self.dialect_names = tuple(dialects)
        self._padding = b"# " + b"x" * padding + b"\n" if padding else b""
        self._bodies: dict[tuple[tuple[str, ...], bool, bool], bytes] = {}

    def latest(self) -> Snapshot | None:
        return self.snapshot

    def metrics(self, dialect: str | None, openmetrics: bool, gzip: bool) -> tuple[bytes, str]:
        if dialect is not None and dialect not in self.dialect_names:
            raise LookupError(dialect)
        names = self.dialect_names if dialect is None else (dialect,)
        key = (names, openmetrics, gzip)
        if key not in self._bodies:
            body = b"".join(f"{name}_up 1\n".encode() for name in names) + self._padding
            if openmetrics:
                body += b"# EOF\n"
            self._bodies[key] = gzip_module.compress(body) if gzip else body
        return self._bodies[key], OPENMETRICS if openmetrics else TEXT

    def forget(self) -> None:
        """The next response has a body of its own, as after a snapshot."""
        self._bodies.clear()


class NoSnapshotYet(FakeFaces):
    def latest(self) -> Snapshot | None:
        return None


class Broken(FakeFaces):
    def metrics(self, dialect: str | None, openmetrics: bool, gzip: bool) -> tuple[bytes, str]:
        raise RuntimeError("secret detail of the failure")
