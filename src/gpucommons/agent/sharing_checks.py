"""Settings of [scheduler] that contradict each other. The agent and `check-config` refuse them in the same words."""

from gpucommons.config.option import ConfigError
from gpucommons.config.scheduler import ParkingSettings, SchedulerSettings


def check_scheduler(scheduler: SchedulerSettings) -> None:
    """Raises ConfigError, one line."""
    if scheduler.xpushare_socket == scheduler.socket:
        raise ConfigError(
            f"scheduler.socket and scheduler.xpushare_socket are both {scheduler.socket}: "
            "set scheduler.xpushare_socket to another path, or to '' for one socket"
        )
    if scheduler.shares_programs and scheduler.mode != "auto":
        raise ConfigError(
            f"scheduler.share_programs = {scheduler.share_programs} needs scheduler.mode = auto, not {scheduler.mode}: "
            "plain programs take turns by measured gain; set one of the two"
        )


def check_parking(parking: ParkingSettings, scheduler: SchedulerSettings) -> None:
    """Raises ConfigError, one line."""
    if parking.idle_after_s and not scheduler.shares_programs:
        raise ConfigError(
            f"parking.idle_after_s = {parking.idle_after_s:g} needs scheduler.share_programs = own or all, not off: "
            "only programs that the agent may pause can be parked"
        )
    if parking.idle_after_s and scheduler.pause != "driver":
        raise ConfigError(
            f"parking.idle_after_s = {parking.idle_after_s:g} needs scheduler.pause = driver, not {scheduler.pause}: "
            "only the driver can move GPU memory"
        )
