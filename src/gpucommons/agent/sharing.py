"""The scheduler in the agent: started as a service, fed with readings of GPUs and pods, read as a source."""

import logging
from collections.abc import Iterator, Sequence

from gpucommons.agent.busy import BusyMeter
from gpucommons.base.address import parse_address_or_port
from gpucommons.config.option import ConfigError
from gpucommons.config.settings import SchedulerSettings, Settings, SharingQuotaSettings
from gpucommons.faces.documents.turns import turn_pieces
from gpucommons.model.gpu import Gpu
from gpucommons.model.pods import PodReading
from gpucommons.model.sharing import SharingReading
from gpucommons.model.snapshot import Snapshot
from gpucommons.scheduler.policy.devices import Busy, GpuFacts
from gpucommons.scheduler.policy.quotas import QuotaRule, QuotaValues, from_annotations, parse_core, parse_memory
from gpucommons.scheduler.service.thread import SchedulerThread
from gpucommons.sources.source import Source, SourceStarting

log = logging.getLogger(__name__)


def check_sockets(scheduler: SchedulerSettings) -> None:
    """Raises ConfigError if both client sockets have the same path."""
    if scheduler.xpushare_socket == scheduler.socket:
        raise ConfigError(
            f"scheduler.socket and scheduler.xpushare_socket are both {scheduler.socket}: "
            "set scheduler.xpushare_socket to another path, or to '' for one socket"
        )


def nvml_cadence_s(settings: Settings) -> float:
    """How often NVML is read. With the scheduler, at most every `metrics_nvml_interval_ms`, as in nvshare."""
    interval_s = settings.sampling.interval_s
    return (
        max(interval_s, settings.scheduler.metrics_nvml_interval_ms / 1000)
        if settings.scheduler.enabled
        else interval_s
    )


def sharing_part(settings: Settings) -> "Sharing":
    """The scheduler: a source of turns, a service for clients, an observer of the GPUs."""
    check_sockets(settings.scheduler)
    rules = [_rule(name, rule) for name, rule in settings.sharing_quotas.items()]
    return Sharing(settings.scheduler, rules, settings.sampling.interval_s)


def _rule(name: str, section: SharingQuotaSettings) -> QuotaRule:
    try:
        memory = parse_memory(section.memory) if section.memory else None
        core = parse_core(str(section.core)) if section.core else None
    except ValueError as error:
        raise ConfigError(f"sharing_quotas.{name}: {error}") from error
    return QuotaRule(section.pod, section.namespace, section.uid, QuotaValues(memory, core))


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


class Sharing:
    """The scheduler as a service, a source, and an observer of snapshots."""

    def __init__(self, settings: SchedulerSettings, rules: Sequence[QuotaRule], cadence_s: float) -> None:
        self._cadence_s = cadence_s
        self._scheduler = SchedulerThread(settings, turn_pieces, rules)
        self._busy = BusyMeter()
        self._pods: PodReading | None = None

    async def start(self) -> None:
        """Raises ListenError, one line, if a socket cannot be served."""
        await self._scheduler.start()

    async def stop(self) -> None:
        await self._scheduler.stop()

    def sources(self) -> list[Source]:
        return [Source("scheduler", "sharing", SharingReading, self._read, self._cadence_s, runs_on="loop")]

    def _read(self) -> SharingReading:
        reading = self._scheduler.reading
        if reading is None:
            raise SourceStarting("the scheduler has not started yet")
        return reading

    def observe(self, snapshot: Snapshot) -> None:
        gpus, pods = snapshot.readings.gpus, snapshot.readings.pods
        # While the driver does not answer, the last known GPUs stay: no reading is not a reading without GPUs.
        if gpus is not None:
            busy = self._busy.of(snapshot)
            self._scheduler.update_gpus([_facts(gpu, busy.get(gpu.identity.uuid)) for gpu in gpus.present_gpus()])
        # While the pods cannot be read, the last known annotations stay.
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
            log.warning("pod %s/%s: %s; the annotation is ignored", pod.namespace, pod.name, error)
            continue
        yield (pod.namespace, pod.name), quota
