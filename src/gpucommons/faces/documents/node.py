"""The node: health, CPU, memory, pressure, the agent itself, and the state of each source. Pure."""

from typing import NamedTuple

from gpucommons.faces.documents.schema import (
    FLAG,
    INTEGER,
    INTEGER_OR_NULL,
    NUMBER,
    NUMBER_OR_NULL,
    TEXT,
    Record,
    by_key,
    one_of,
    or_null,
    record,
)
from gpucommons.faces.documents.values import Json, rounded
from gpucommons.model.host import CpuReading, MemoryReading, Pressure, PressureLine, PressureReading
from gpucommons.model.snapshot import AgentReading, Snapshot, SourceState
from gpucommons.rules.health import NodeHealth, node_health_of


class _SourceNow(NamedTuple):
    state: SourceState
    word: str

    @property
    def fresh(self) -> bool:
        return self.word == "fresh"


_HEALTH = Record[NodeHealth](
    score=(NUMBER, lambda health: round(health.score, 2)),
    completeness_ratio=(NUMBER, lambda health: round(health.completeness_ratio, 3)),
    component_ratios=(
        by_key(NUMBER, "signal; 1 is all headroom"),
        lambda health: {name: round(value, 3) for name, value in health.components.items()},
    ),
)
_CPU = Record[CpuReading](
    cores=(INTEGER, lambda cpu: cpu.cores),
    utilization_ratio=(NUMBER_OR_NULL, lambda cpu: rounded(cpu.utilization_ratio, 4)),
    load_1m=(NUMBER_OR_NULL, lambda cpu: rounded(cpu.load_1m, 2)),
    load_5m=(NUMBER_OR_NULL, lambda cpu: rounded(cpu.load_5m, 2)),
    load_15m=(NUMBER_OR_NULL, lambda cpu: rounded(cpu.load_15m, 2)),
)
_MEMORY = Record[MemoryReading](
    total_bytes=(INTEGER, lambda memory: memory.total_bytes),
    available_bytes=(INTEGER_OR_NULL, lambda memory: memory.available_bytes),
)
_LINE = Record[PressureLine](
    avg10_percent=(NUMBER, lambda line: round(line.avg10, 2)),
    avg60_percent=(NUMBER, lambda line: round(line.avg60, 2)),
    avg300_percent=(NUMBER, lambda line: round(line.avg300, 2)),
    stalled_seconds_total=(NUMBER, lambda line: round(line.stalled_seconds_total, 3)),
)
_RESOURCE_PRESSURE = Record[Pressure](
    some=(or_null(_LINE.schema), lambda pressure: _LINE.build_or_null(pressure.some)),
    full=(or_null(_LINE.schema), lambda pressure: _LINE.build_or_null(pressure.full)),
)
_PRESSURE = Record[PressureReading](
    cpu=(or_null(_RESOURCE_PRESSURE.schema), lambda pressure: _RESOURCE_PRESSURE.build_or_null(pressure.cpu)),
    memory=(or_null(_RESOURCE_PRESSURE.schema), lambda pressure: _RESOURCE_PRESSURE.build_or_null(pressure.memory)),
    io=(or_null(_RESOURCE_PRESSURE.schema), lambda pressure: _RESOURCE_PRESSURE.build_or_null(pressure.io)),
)
# The last failure of a fresh source is over: detail and remedy are empty then.
_SOURCE = Record[_SourceNow](
    state=(one_of("fresh", "stale", "failing", "absent"), lambda now: now.word),
    essential=(FLAG, lambda now: now.state.essential),
    last_success_unix_s=(NUMBER_OR_NULL, lambda now: rounded(now.state.last_success_wall_s, 1)),
    failures=(by_key(INTEGER, "reason"), lambda now: dict(now.state.failures)),
    detail=(TEXT, lambda now: "" if now.fresh else now.state.detail),
    remedy=(TEXT, lambda now: "" if now.fresh else now.state.remedy),
)
_AGENT = Record[AgentReading](
    version=(TEXT, lambda agent: agent.version),
    started_unix_s=(NUMBER, lambda agent: round(agent.started_wall_s, 1)),
    cpu_seconds_total=(NUMBER_OR_NULL, lambda agent: rounded(agent.cpu_seconds, 2)),
    rss_bytes=(INTEGER_OR_NULL, lambda agent: agent.rss_bytes),
    connections_open=(INTEGER, lambda agent: agent.connections_open),
)
SCHEMA = record(
    health=or_null(_HEALTH.schema),
    cpu=or_null(_CPU.schema),
    memory=or_null(_MEMORY.schema),
    pressure=or_null(_PRESSURE.schema),
    sources=by_key(_SOURCE.schema, "name"),
    agent=or_null(_AGENT.schema),
)


def node(snapshot: Snapshot) -> Json:
    readings, now_s = snapshot.readings, snapshot.monotonic_s
    return {
        "health": _HEALTH.build_or_null(node_health_of(readings.cpu, readings.memory, readings.pressure)),
        "cpu": _CPU.build_or_null(readings.cpu),
        "memory": _MEMORY.build_or_null(readings.memory),
        "pressure": _PRESSURE.build_or_null(readings.pressure),
        "sources": {
            name: _SOURCE.build(_SourceNow(state, state_of(state, now_s)))
            for name, state in sorted(snapshot.sources.items())
        },
        "agent": _AGENT.build_or_null(readings.agent),
    }


def state_of(state: SourceState, now_monotonic_s: float) -> str:
    if state.is_fresh(now_monotonic_s):
        return "fresh"
    if state.absent:
        return "absent"
    return "stale" if state.up else "failing"
