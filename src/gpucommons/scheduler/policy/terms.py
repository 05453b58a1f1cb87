"""Every setting of the scheduler and its default. Values only: the configuration reads and checks them."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

GIB: Final = 1 << 30

# Where the libraries of nvshare and of XPUShare look for their scheduler.
NVSHARE_SOCKET: Final = "/var/run/nvshare/scheduler.sock"
XPUSHARE_SOCKET: Final = "/var/run/xpushare/scheduler.sock"


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
class PolicySettings:
    """Times in seconds, memory in bytes. `max_bypass_s` None means two quanta.

    Clients on `xpushare_socket_path` are in the same queues as those on `socket_path`. Empty: not served.
    """

    socket_path: str = NVSHARE_SOCKET
    xpushare_socket_path: str = ""
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
