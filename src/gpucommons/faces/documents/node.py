"""The node: health, CPU, memory, pressure, the agent itself, the state of each source, and what is wrong. Pure.

Problems come gravest first, with the node's state in one sentence.
"""

from typing import NamedTuple

from gpucommons.faces.documents.schema import (
    FLAG,
    INTEGER,
    INTEGER_OR_NULL,
    NUMBER,
    NUMBER_OR_NULL,
    TEXT,
    TEXT_OR_NULL,
    Record,
    by_key,
    describe,
    list_of,
    one_of,
    or_null,
    record,
)
from gpucommons.faces.documents.values import Json, round_value
from gpucommons.model.host import CpuReading, MemoryReading, Pressure, PressureLine, PressureReading
from gpucommons.model.problems import HealthLevel, Problem, ProblemKind
from gpucommons.model.snapshot import AgentReading, Snapshot, SourceState
from gpucommons.rules.health import NodeHealth, node_health_of
from gpucommons.rules.problems import problems_of
from gpucommons.rules.summary import StateSummary, SummaryPart, Tone, summary_of

# What is wrong on the node, gravest first, and the node's state in one sentence. Pure.

_PROBLEM = Record[tuple[int, Problem]](
    rank=(describe(INTEGER, "1 is the gravest"), lambda at: at[0]),
    kind=(one_of(*ProblemKind), lambda at: at[1].kind.value),
    level=(one_of(*(level.name.lower() for level in HealthLevel)), lambda at: at[1].level.name.lower()),
    sentence=(describe(TEXT, "what is wrong"), lambda at: at[1].sentence),
    remedy=(describe(TEXT, "what to do"), lambda at: at[1].remedy),
    gpu_uuid=(TEXT_OR_NULL, lambda at: at[1].gpu_uuid),
    gpu_index=(INTEGER_OR_NULL, lambda at: at[1].gpu_index),
    since_unix_s=(
        describe(NUMBER_OR_NULL, "when it began; null if that is not known"),
        lambda at: round_value(at[1].since_wall_s, 0),
    ),
)
_PART = Record[SummaryPart](
    name=(describe(TEXT, "lost, overheating, problems, free, held_idle, waiting and so on"), lambda part: part.name),
    count=(INTEGER, lambda part: part.count),
    text=(TEXT, lambda part: part.text),
    detail=(describe(TEXT, "which GPUs, or the longest holder; may be empty"), lambda part: part.detail),
    tone=(one_of(*Tone), lambda part: part.tone.value),
    slots=(describe(list_of(TEXT), "names of the slots that it counts"), lambda part: list(part.slots)),
    lines=(
        describe(list_of(TEXT), "each idle holder, each that waits and each lost GPU, with its time; may be empty"),
        lambda part: list(part.lines),
    ),
)
SUMMARY_RECORD = Record[StateSummary](
    sentence=(describe(TEXT, "the parts in one line"), lambda summary: summary.sentence),
    tone=(one_of(*Tone), lambda summary: summary.tone.value),
    parts=(list_of(_PART.schema), lambda summary: [_PART.build(part) for part in summary.parts]),
)
PROBLEMS_SCHEMA = by_key(_PROBLEM.schema, "key of the problem")
SUMMARY = SUMMARY_RECORD.schema


def problems(snapshot: Snapshot) -> Json:
    return {problem.key: _PROBLEM.build((rank, problem)) for rank, problem in enumerate(problems_of(snapshot), 1)}


def summary(snapshot: Snapshot) -> Json:
    return SUMMARY_RECORD.build(summary_of(snapshot, problems_of(snapshot)))


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
    utilization_ratio=(NUMBER_OR_NULL, lambda cpu: round_value(cpu.utilization_ratio, 4)),
    load_1m=(NUMBER_OR_NULL, lambda cpu: round_value(cpu.load_1m, 2)),
    load_5m=(NUMBER_OR_NULL, lambda cpu: round_value(cpu.load_5m, 2)),
    load_15m=(NUMBER_OR_NULL, lambda cpu: round_value(cpu.load_15m, 2)),
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
    last_success_unix_s=(NUMBER_OR_NULL, lambda now: round_value(now.state.last_success_wall_s, 1)),
    failures=(by_key(INTEGER, "reason"), lambda now: dict(now.state.failures)),
    detail=(TEXT, lambda now: "" if now.fresh else now.state.detail),
    remedy=(TEXT, lambda now: "" if now.fresh else now.state.remedy),
)
_AGENT = Record[AgentReading](
    version=(TEXT, lambda agent: agent.version),
    started_unix_s=(NUMBER, lambda agent: round(agent.started_wall_s, 1)),
    cpu_seconds_total=(NUMBER_OR_NULL, lambda agent: round_value(agent.cpu_seconds, 2)),
    rss_bytes=(INTEGER_OR_NULL, lambda agent: agent.rss_bytes),
    connections_open=(INTEGER, lambda agent: agent.connections_open),
)
NODE_SCHEMA = record(
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
