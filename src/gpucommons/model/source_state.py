"""The state of one source: up, absent or failing, the duration of its last read, and why it failed."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SourceState:
    """One source at an instant.

    `absent` means that what it reads does not exist on this node (no driver, no Docker): it is down, but this is not a
    failure. `detail` is what is wrong and `remedy` what to do about it.
    """

    name: str
    essential: bool = False
    up: bool = False
    absent: bool = False
    duration_s: float | None = None
    last_success_monotonic_s: float | None = None
    last_success_wall_s: float | None = None
    failures: Mapping[str, int] = field(default_factory=dict)
    detail: str = ""
    remedy: str = ""
    stale_after_s: float = 0.0

    def is_fresh(self, now_monotonic_s: float) -> bool:
        """Whether the last reading is recent enough to be served as current."""
        last = self.last_success_monotonic_s
        return self.up and last is not None and now_monotonic_s - last <= self.stale_after_s
