"""The settings as the rules use them: words of the config file as enumerations, and what an operator changed since."""

from enum import StrEnum
from typing import Final

from gpucommons.config.scheduler import SchedulerSettings

GIB: Final = 1 << 30


class Mode(StrEnum):
    """serial: one at a time. concurrent: together while memory fits. auto: also by measured demand."""

    SERIAL = "serial"
    CONCURRENT = "concurrent"
    AUTO = "auto"


class SwitchTime(StrEnum):
    AUTO = "auto"
    FIXED = "fixed"


class Fence(StrEnum):
    """When the socket of a client whose turn was revoked is closed: never, after its second revocation
    within a while (revocations.py), at once."""

    NONE = "none"
    SECOND = "second"
    DISCONNECT = "disconnect"

    def closes_after(self, revocations: int) -> bool:
        return revocations >= {Fence.DISCONNECT: 1, Fence.SECOND: 2}.get(self, revocations + 1)


class Terms:
    """`operator_quantum_s` is the quantum that an operator fixed; None: by the settings. `v1_alone`: v1 clients run
    alone, because their memory is not known."""

    __slots__ = (
        "_configured_shortest_s",
        "auto",
        "fair_between_owners",
        "fence",
        "fixed_switch_time",
        "mode",
        "operator_quantum_s",
        "serial",
        "settings",
        "shortest_quantum_s",
        "v1_alone",
    )

    # The limits of a quantum that grows with the memory to be moved.
    SWITCH_TIME_MIN_S: Final = 10.0
    SWITCH_TIME_MAX_S: Final = 300.0

    def __init__(self, settings: SchedulerSettings) -> None:
        self.settings = settings
        self.fence = Fence(settings.fence)
        self.fair_between_owners = settings.fair_between == "owners"
        self.fixed_switch_time = SwitchTime(settings.switch_time_mode) is SwitchTime.FIXED
        self.operator_quantum_s: float | None = None
        self._configured_shortest_s = settings.switch_time_fixed_s if self.fixed_switch_time else self.SWITCH_TIME_MIN_S
        self.shortest_quantum_s = self._configured_shortest_s
        self.set_mode(Mode(settings.mode))

    def set_mode(self, mode: Mode) -> None:
        self.mode = mode
        self.serial = mode is Mode.SERIAL
        self.auto = mode is Mode.AUTO
        self.v1_alone = mode is not Mode.CONCURRENT

    def longest_quantum_s(self, total_bytes: int) -> float:
        """The longest quantum on a GPU with so much memory."""
        if self.operator_quantum_s is not None or self.fixed_switch_time:
            return self.shortest_quantum_s
        longest_s = self.settings.switch_time_multiplier * total_bytes / GIB
        return min(max(longest_s, self.SWITCH_TIME_MIN_S), self.SWITCH_TIME_MAX_S)

    def set_quantum(self, seconds: float | None) -> None:
        """None: as the settings say."""
        self.operator_quantum_s = seconds
        self.shortest_quantum_s = self._configured_shortest_s if seconds is None else seconds
