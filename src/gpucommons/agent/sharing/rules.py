"""The rules of [sharing_quotas], and settings of [scheduler] that contradict each other.

The agent and `check-config` refuse contradictions in the same words.
"""

import logging
from collections.abc import Iterator
from typing import Final

from gpucommons.base.address import parse_address_or_port
from gpucommons.base.text import parse_core, parse_memory
from gpucommons.config.option import ConfigError
from gpucommons.config.scheduler import ParkingSettings, SchedulerSettings, SharingQuotaSettings
from gpucommons.config.settings import Settings
from gpucommons.model.sharing import SharingClass
from gpucommons.scheduler.parking.arrivals import parse_room
from gpucommons.scheduler.policy.quotas import QuotaRule, QuotaValues
from gpucommons.scheduler.programs.matching import ProgramRule

# The kernel, the container runtime or Slurm says these of a process. A client of nvshare only claims its pod's name.
_OF_PROCESSES: Final = ("user", "group", "container", "job", "unit", "command")


def client_rules(settings: Settings) -> tuple[QuotaRule, ...]:
    """The rules for nvshare's clients: those that match by pod, namespace and uid only. Raises ConfigError."""
    return tuple(
        QuotaRule(section.pod, section.namespace, section.uid, quota)
        for _, section, quota in _sections(settings)
        if section.share and all(getattr(section, pattern) == "*" for pattern in _OF_PROCESSES)
    )


def program_rules(settings: Settings) -> tuple[ProgramRule, ...]:
    """The rules for programs, in the order of the file. Raises ConfigError."""
    return tuple(
        ProgramRule(
            name,
            user=section.user,
            group=section.group,
            container=section.container,
            pod=section.pod,
            namespace=section.namespace,
            job=section.job,
            unit=section.unit,
            command=section.command,
            uid=section.uid,
            quota=quota,
            share=section.share,
        )
        for name, section, quota in _sections(settings)
    )


def check_rules(settings: Settings) -> None:
    """Raises ConfigError, one line, for the first rule with a wrong value."""
    for _ in _sections(settings):
        pass


def _sections(settings: Settings) -> Iterator[tuple[str, SharingQuotaSettings, QuotaValues]]:
    for name, section in settings.sharing_quotas.items():
        try:
            yield name, section, _checked(section)
        except ValueError as error:
            raise ConfigError(f"sharing_quotas.{name}: {error}") from error


def _checked(section: SharingQuotaSettings) -> QuotaValues:
    for pattern in _OF_PROCESSES:
        if not getattr(section, pattern):
            raise ValueError(f"{pattern} is empty and matches no program: use a shell pattern, or leave it out")
    if not section.share and (section.memory or section.core or section.class_):
        raise ValueError(
            "share = false and a quota or class: what is left alone has neither; remove memory, core, class or share"
        )
    memory = parse_memory(section.memory) if section.memory else None
    core = parse_core(str(section.core)) if section.core else None
    return QuotaValues(memory, core, SharingClass(section.class_) if section.class_ else None)


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
    found = []
    for enabled, text, dialect in candidates:
        if not enabled:
            continue
        address = str(parse_address_or_port(text))
        if not address.startswith(("127.", "localhost:", "[::1]:")):
            log.warning("%s metrics on %s are open to the network (%s_METRICS_ADDR)", dialect, address, dialect.upper())
        found.append((address, dialect))
    return found
