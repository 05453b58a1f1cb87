"""Turns in the agent: the scheduler from settings, fed with what the GPUs and pods tell, read as a source."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from gpucommons.agent.busy import BusyMeter
from gpucommons.agent.parts import Parts
from gpucommons.base.decimal_text import parse_decimal
from gpucommons.config.option import ConfigError
from gpucommons.config.settings import SchedulerSettings as Section
from gpucommons.config.settings import Settings, SharingQuotaSettings
from gpucommons.model.gpu import Gpu
from gpucommons.model.pods import PodReading
from gpucommons.model.sharing import SharingReading
from gpucommons.model.snapshot import Snapshot
from gpucommons.scheduler.policy.devices import Busy, GpuFacts
from gpucommons.scheduler.policy.quotas import QuotaRule, QuotaValues, from_annotations, parse_core, parse_memory
from gpucommons.scheduler.policy.settings import GIB, Fence, Mode, PolicySettings, SwitchTime
from gpucommons.scheduler.service.thread import SchedulerThread
from gpucommons.sources.source import SourceStarting

log = logging.getLogger(__name__)


def scheduler_settings(section: Section) -> PolicySettings:
    """The configuration's keys, in the units of their variables, as the scheduler's settings."""
    if section.xpushare_socket == section.socket:
        raise ConfigError(
            f"scheduler.socket and scheduler.xpushare_socket are both {section.socket}: "
            "set scheduler.xpushare_socket to another path, or to '' for one socket"
        )
    return PolicySettings(
        socket_path=section.socket,
        xpushare_socket_path=section.xpushare_socket,
        admin_group=section.admin_group,
        debug=section.debug,
        mode=Mode(section.mode),
        corun_limit=section.corun_limit,
        turn_quantum_s=section.turn_quantum_s,
        max_bypass_s=section.max_bypass_s or None,
        switch_time_mode=SwitchTime(section.switch_time_mode),
        switch_time_fixed_s=section.switch_time_fixed_s,
        switch_time_s_per_gib=section.switch_time_multiplier,
        memory_reserve_percent=section.memory_reserve_percent,
        default_gpu_memory_bytes=int(section.default_gpu_memory_gb * GIB),
        quota_sample_interval_s=section.quota_sample_interval_ms / 1000,
        compute_window_s=section.compute_window_ms / 1000,
        quota_carryover_percent=section.quota_carryover_percent,
        drop_tail_billing_percent=section.drop_tail_billing_percent,
        work_conserving=section.work_conserving,
        revoke_after_s=section.revoke_after_s,
        fence=Fence(section.fence),
        metrics_debug_labels=section.metrics_debug_labels,
        metrics_stale_ttl_s=section.metrics_stale_ttl_s,
    )


def with_sharing(parts: Parts, settings: Settings) -> Parts:
    """The same parts and the scheduler: a source of turns, a service for clients, an observer of the GPUs."""
    rules = client_rules(settings.sharing_quotas)
    sharing = Sharing(scheduler_settings(settings.scheduler), rules, settings.sampling.interval_s)
    return replace(
        parts,
        sources=[*parts.sources, sharing],
        services=[*parts.services, sharing],
        observers=[*parts.observers, sharing.observe],
    )


def client_rules(sections: Mapping[str, SharingQuotaSettings]) -> list[QuotaRule]:
    """The rules for nvshare's clients. Only their pod, namespace and uid are known: rules on anything else are left
    out, for they would limit every client."""
    return [_rule(name, section) for name, section in sections.items() if _is_for_clients(section)]


def _is_for_clients(rule: SharingQuotaSettings) -> bool:
    others = (rule.user, rule.group, rule.container, rule.job, rule.unit, rule.command)
    return all(pattern == "*" for pattern in others)


def _rule(name: str, section: SharingQuotaSettings) -> QuotaRule:
    try:
        memory = parse_memory(section.memory) if section.memory else None
        core = parse_core(str(section.core)) if section.core else None
    except ValueError as error:
        raise ConfigError(f"sharing_quotas.{name}: {error}") from error
    return QuotaRule(section.pod, section.namespace, section.uid, QuotaValues(memory, core))


def metrics_listeners(section: Section) -> list[tuple[str, str]]:
    """The drop-in listeners that NVSHARE_METRICS_ENABLE and XPUSHARE_METRICS_ENABLE open: address and dialect."""
    wanted = (
        (section.metrics_enable, section.metrics_addr, "nvshare"),
        (section.xpushare_metrics_enable, section.xpushare_metrics_addr, "xpushare"),
    )
    found = []
    for enabled, text, dialect in wanted:
        if not enabled:
            continue
        address = f"0.0.0.0:{text}" if parse_decimal(text) is not None else text
        if not address.startswith(("127.", "localhost:", "[::1]:")):
            log.warning("%s metrics on %s are open to the network (%s_METRICS_ADDR)", dialect, address, dialect.upper())
        found.append((address, dialect))
    return found


class Sharing:
    """The scheduler as a part of the agent: a service, a source, and an observer of snapshots."""

    name = "scheduler"
    feeds = "sharing"
    produces = SharingReading
    deadline_s = 2.0
    essential = False
    runs_on: Literal["loop"] = "loop"

    def __init__(self, settings: PolicySettings, rules: Sequence[QuotaRule], cadence_s: float) -> None:
        self.cadence_s = cadence_s
        self._scheduler = SchedulerThread(settings, rules)
        self._busy = BusyMeter()
        self._pods: PodReading | None = None

    async def start(self) -> None:
        """Raises ListenError, one line, where the socket cannot be served."""
        await self._scheduler.start()

    async def stop(self) -> None:
        await self._scheduler.stop()

    def read(self) -> SharingReading:
        reading = self._scheduler.reading
        if reading is None:
            raise SourceStarting("the scheduler is not started")
        return reading

    def observe(self, snapshot: Snapshot) -> None:
        gpus, pods = snapshot.readings.gpus, snapshot.readings.pods
        # While the driver does not answer the last known GPUs hold: a silence is not a reading without GPUs.
        if gpus is not None:
            busy = self._busy.of(snapshot)
            self._scheduler.update_gpus([_facts(gpu, busy.get(gpu.identity.uuid)) for gpu in gpus.present_gpus()])
        # While the pods cannot be read the last known annotations hold.
        if pods is not None and pods is not self._pods:
            self._pods = pods
            self._scheduler.set_annotations(dict(_annotated(pods)))


def _facts(gpu: Gpu, busy: Busy | None) -> GpuFacts:
    return GpuFacts(
        gpu.identity.uuid,
        gpu.identity.index,
        gpu.readings.memory_total_bytes,
        busy,
        process_bytes={p.pid: p.used_memory_bytes for p in gpu.processes or () if p.used_memory_bytes is not None},
        mig=tuple(instance.uuid for instance in gpu.mig),
    )


def _annotated(pods: PodReading) -> Iterator[tuple[tuple[str, str], QuotaValues]]:
    for pod in pods.by_uid.values():
        try:
            quota = from_annotations(pod.annotations)
        except ValueError as error:
            log.warning("pod %s/%s: %s; it is not limited by it", pod.namespace, pod.name, error)
            continue
        yield (pod.namespace, pod.name), quota
