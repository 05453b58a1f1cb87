"""What the web serves, as the web sees it: the current snapshot and its rendered bytes. Holds nothing."""

from typing import Protocol

from gpucommons.model.snapshot import Snapshot


class MetricsProvider(Protocol):
    """Every method returns at once: no I/O and no lock that a source could hold."""

    @property
    def dialect_names(self) -> tuple[str, ...]: ...

    def latest(self) -> Snapshot | None:
        """The current snapshot; None until there is a first one."""
        ...

    def metrics(self, dialect: str | None, openmetrics: bool, gzip: bool) -> tuple[bytes, str]:
        """The current snapshot in one dialect, or in all, and its content type.

        Raises LookupError for a dialect that does not exist.
        """
        ...
