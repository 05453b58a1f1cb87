"""A lease service with clocks that the test sets, and clients that keep the lines they get."""

import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpucommons.config.accounts import LeasesSettings
from gpucommons.leases.policy.values import LeasableSlot
from gpucommons.leases.protocol import Line
from gpucommons.leases.service.limits import LeaseHost
from gpucommons.leases.service.record import LeaseRecord
from gpucommons.leases.service.service import (
    LeaseClient,
    LeaseEnforcement,
    LeaseFacts,
    LeaseService,
    MpsService,
)
from gpucommons.model.process_identity import ProcessKey


@dataclass
class Inbox:
    """What one client was sent."""

    uid: int = 1001
    user: str = "alice"
    pid: int = 4711
    sees_all: bool = False
    lines: list[Line] = field(default_factory=list)

    def client(self, updates: bool = False) -> LeaseClient:
        return LeaseClient(self.uid, self.user, self.pid, 77, self.sees_all, self.lines.append, updates)

    def events(self) -> list[str]:
        return [str(line["event"]) for line in self.lines]

    def last(self, event: str) -> dict[str, Any]:
        return dict([line for line in self.lines if line["event"] == event][-1])


@dataclass
class SteppedService:
    directory: Path
    slots: tuple[LeasableSlot, ...]
    wall_s: float = 1_800_000_000.0
    monotonic_s: float = 50.0
    boot_id: str = "boot-1"
    descendants: set[tuple[int, int]] = field(default_factory=set)
    dead: set[int] = field(default_factory=set)
    enforcement: LeaseEnforcement | None = None
    reports: list[str] = field(default_factory=list)
    mps: MpsService | None = None
    at_limit: str = "message"
    signals: list[tuple[ProcessKey, signal.Signals]] = field(default_factory=list)
    refusal: str = ""
    service: LeaseService = field(init=False)

    def __post_init__(self) -> None:
        self.open()
        self.look()

    def open(self) -> None:
        record = LeaseRecord(self.directory / "leases.json", self.boot_id)
        host = LeaseHost(
            lambda: self.wall_s,
            lambda: self.monotonic_s,
            lambda pid: None if pid in self.dead else 77,
            lambda pid, above: (pid, above) in self.descendants,
            self.reports.append,
            self.send_signal,
        )
        settings = LeasesSettings(at_limit=self.at_limit)
        self.service = LeaseService(settings, (), record, host, enforcement=self.enforcement, mps=self.mps)

    def send_signal(self, process: ProcessKey, number: signal.Signals) -> str:
        self.signals.append((process, number))
        return self.refusal

    def restart(self) -> None:
        self.service.close()
        self.open()
        self.look()

    def later(self, seconds: float) -> None:
        self.wall_s += seconds
        self.monotonic_s += seconds
        self.service.tick()

    def look(self, **facts: Any) -> None:
        """A snapshot that was read now."""
        self.service.update(LeaseFacts(**{"slots": self.slots, "read_s": self.wall_s, **facts}))
