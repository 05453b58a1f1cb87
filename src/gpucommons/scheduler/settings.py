"""Every setting of the scheduler, its default, and the NVSHARE_* variable that sets it.

Pure: the caller hands in the environment. A bad value is refused with one line that names the variable.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Final

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
    """What befalls a client whose turn was revoked: nothing, or its socket is closed."""

    NONE = "none"
    DISCONNECT = "disconnect"


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """Times in seconds, memory in bytes. `max_bypass_s` None means two quanta."""

    socket_path: str = "/var/run/nvshare/scheduler.sock"
    admin_group: str = ""
    debug: bool = False

    mode: Mode = Mode.AUTO
    corun_limit: float = 1.5
    turn_quantum_s: float = 1.0
    solo_refresh_s: float = 60.0
    max_bypass_s: float | None = None

    switch_time_mode: SwitchTime = SwitchTime.AUTO
    switch_time_fixed_s: float = 60.0
    switch_time_s_per_gib: float = 5.0
    switch_time_min_s: float = 10.0
    switch_time_max_s: float = 300.0

    memory_reserve_percent: float = 10.0
    default_gpu_memory_bytes: int = 16 * GIB

    quota_sample_interval_s: float = 0.05
    compute_window_s: float = 2.0
    quota_carryover_percent: float = 25.0
    drop_tail_billing_percent: float = 100.0
    work_conserving: bool = False

    drop_resend_s: float = 5.0
    revoke_after_s: float = 30.0
    fence: Fence = Fence.NONE

    max_clients: int = 4096
    max_unknown_gpus: int = 16

    metrics_enable: bool = False
    metrics_address: str = "0.0.0.0:9402"
    nvml_interval_s: float = 1.0
    metrics_debug_labels: bool = True
    metrics_stale_ttl_s: float = 0.0

    def __post_init__(self) -> None:
        """Words of a config file become what they stand for; raises ValueError on an unknown one."""
        object.__setattr__(self, "mode", Mode(self.mode))
        object.__setattr__(self, "switch_time_mode", SwitchTime(self.switch_time_mode))
        object.__setattr__(self, "fence", Fence(self.fence))


class _Wants(Exception):
    """A parser's complaint: what the variable should have held."""


def _flag(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in {"1", "true", "yes", "on"}:
        return True
    if lowered in {"", "0", "false", "no", "off"}:
        return False
    raise _Wants("0 or 1")


def _number(wants: str, low: float, high: float, scale: float = 1.0) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise _Wants(wants) from None
        if not low <= value <= high:
            raise _Wants(wants)
        return value * scale

    return parse


def _gigabytes(text: str) -> int:
    return int(_number("gigabytes, above 0 and at most 4096", 0.001, 4096)(text) * GIB)


def _mode(text: str) -> Mode:
    try:
        return Mode(text.strip().lower())
    except ValueError:
        raise _Wants("auto, serial or concurrent") from None


def _switch_time(text: str) -> SwitchTime:
    try:
        return SwitchTime(text.strip().lower())
    except ValueError:
        raise _Wants("auto or fixed") from None


def _address(text: str) -> str:
    """host:port, or a port alone, which listens on every address."""
    host, colon, port = text.strip().rpartition(":")
    if not port.isdigit() or not 0 < int(port) < 65536 or (colon and not host):
        raise _Wants("host:port or a port")
    return f"{host}:{port}" if host else f"0.0.0.0:{port}"


_PERCENT: Final = _number("a percentage from 0 to 100", 0, 100)


@dataclass(frozen=True, slots=True)
class Variable:
    """One NVSHARE_* variable, the setting it sets, and how its text is read."""

    name: str
    setting: str
    parse: Callable[[str], object]


VARIABLES: Final = (
    Variable("NVSHARE_DEBUG", "debug", _flag),
    Variable("NVSHARE_SCHEDULING_MODE", "mode", _mode),
    Variable("NVSHARE_SWITCH_TIME_MODE", "switch_time_mode", _switch_time),
    Variable("NVSHARE_SWITCH_TIME_FIXED", "switch_time_fixed_s", _number("seconds from 0.1 to 86400", 0.1, 86400)),
    Variable(
        "NVSHARE_SWITCH_TIME_MULTIPLIER",
        "switch_time_s_per_gib",
        _number("seconds per GiB from 0 to 3600", 0, 3600),
    ),
    Variable(
        "NVSHARE_MEMORY_RESERVE_PERCENT",
        "memory_reserve_percent",
        _number("a percentage from 0 to 90", 0, 90),
    ),
    Variable("NVSHARE_DEFAULT_GPU_MEMORY_GB", "default_gpu_memory_bytes", _gigabytes),
    Variable(
        "NVSHARE_QUOTA_SAMPLE_INTERVAL_MS",
        "quota_sample_interval_s",
        _number("milliseconds from 1 to 10000", 1, 10_000, 1e-3),
    ),
    Variable(
        "NVSHARE_COMPUTE_WINDOW_MS",
        "compute_window_s",
        _number("milliseconds from 100 to 600000", 100, 600_000, 1e-3),
    ),
    Variable("NVSHARE_QUOTA_CARRYOVER_PERCENT", "quota_carryover_percent", _PERCENT),
    Variable("NVSHARE_DROP_TAIL_BILLING_PERCENT", "drop_tail_billing_percent", _PERCENT),
    Variable("NVSHARE_METRICS_ENABLE", "metrics_enable", _flag),
    Variable("NVSHARE_METRICS_ADDR", "metrics_address", _address),
    Variable(
        "NVSHARE_METRICS_NVML_INTERVAL_MS",
        "nvml_interval_s",
        _number("milliseconds from 100 to 60000", 100, 60_000, 1e-3),
    ),
    Variable("NVSHARE_METRICS_DEBUG_LABELS", "metrics_debug_labels", _flag),
    Variable("NVSHARE_METRICS_STALE_TTL_SEC", "metrics_stale_ttl_s", _number("seconds from 0 to 86400", 0, 86400)),
)


def from_environment(environment: Mapping[str, str], base: SchedulerSettings | None = None) -> SchedulerSettings:
    """`base` with every NVSHARE_* variable that is set laid over it; raises ValueError on a bad one."""
    found: dict[str, object] = {}
    for variable in VARIABLES:
        text = environment.get(variable.name)
        if text is None:
            continue
        try:
            found[variable.setting] = variable.parse(text)
        except _Wants as wants:
            raise ValueError(f"{variable.name}={text!r}: wants {wants}") from None
    return replace(base or SchedulerSettings(), **found)  # type: ignore[arg-type]


SETTING_NAMES: Final = frozenset(field.name for field in fields(SchedulerSettings))
