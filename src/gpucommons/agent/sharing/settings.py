"""What the settings of sharing mean together: which contradict each other, and what follows from them.

The agent and `check-config` refuse contradictions in the same words. Every agent imports this module, and it imports
nothing of the scheduler.
"""

import logging

from gpucommons.base.address import parse_address_or_port
from gpucommons.config.option import ConfigError
from gpucommons.config.scheduler import ParkingSettings, SchedulerSettings, parse_room
from gpucommons.config.settings import Settings

log = logging.getLogger(__name__)


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
    try:
        parse_room(parking.arrival_room)
    except ValueError as error:
        raise ConfigError(
            f"parking.arrival_room = {parking.arrival_room!r}: {error}; use a percentage such as 25%, 40Gi, or off"
        ) from error
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


def check_slurm(settings: Settings) -> None:
    """Raises ConfigError, one line."""
    if not settings.slurm.pause_outside_allocation:
        return
    if not settings.slurm.job_directory or settings.scheduler.share_programs != "all":
        raise ConfigError(
            "slurm.pause_outside_allocation needs slurm.job_directory, to know what a job was given, and "
            "scheduler.share_programs = all, to pause it: set both"
        )
    if enforces_leases(settings):
        raise ConfigError(
            "slurm.pause_outside_allocation and leases that pause programs exclude each other: Slurm gives the GPUs; "
            "set leases.enabled = false"
        )


def nvml_cadence_s(settings: Settings) -> float:
    """How often NVML is read. With the scheduler, at most every `metrics_nvml_interval_ms`, as in nvshare."""
    interval_s = settings.sampling.interval_s
    return (
        max(interval_s, settings.scheduler.metrics_nvml_interval_ms / 1000)
        if settings.scheduler.is_used
        else interval_s
    )


def enforces_leases(settings: Settings) -> bool:
    """Whether programs on GPUs that are leased to others are paused: all, or those over the limit of their lease."""
    return "pause" in (settings.leases.enforce, settings.leases.at_limit) and settings.leases.enabled != "false"


def metrics_listeners(scheduler: SchedulerSettings) -> list[tuple[str, str]]:
    """The drop-in listeners of NVSHARE_METRICS_ENABLE and XPUSHARE_METRICS_ENABLE: address and dialect."""
    candidates = (
        (scheduler.metrics_enable, scheduler.metrics_addr, "nvshare"),
        (scheduler.xpushare_metrics_enable, scheduler.xpushare_metrics_addr, "xpushare"),
    )
    listeners = []
    for enabled, text, dialect in candidates:
        if not enabled:
            continue
        address = str(parse_address_or_port(text))
        if not address.startswith(("127.", "localhost:", "[::1]:")):
            log.warning("%s metrics on %s are open to the network (%s_METRICS_ADDR)", dialect, address, dialect.upper())
        listeners.append((address, dialect))
    return listeners
