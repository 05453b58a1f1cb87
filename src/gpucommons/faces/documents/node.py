"""The node itself: health, CPU, memory, pressure, and how each source of readings is doing. Pure."""

from gpucommons.faces.documents.schema import FLAG, INTEGER, NUMBER, TEXT, by_key, one_of, or_null, record
from gpucommons.faces.documents.values import Json, rounded
from gpucommons.model.host import CpuReading, MemoryReading, Pressure, PressureLine, PressureReading
from gpucommons.model.snapshot import Snapshot
from gpucommons.model.source_state import SourceState
from gpucommons.rules.node_health import health_of

_LINE = record(avg10_percent=NUMBER, avg60_percent=NUMBER, avg300_percent=NUMBER, stalled_seconds_total=NUMBER)
_PRESSURE = or_null(record(some=or_null(_LINE), full=or_null(_LINE)))
SCHEMA = record(
    health=or_null(
        record(score=NUMBER, completeness_ratio=NUMBER, component_ratios=by_key(NUMBER, "signal; 1 is all headroom"))
    ),
    cpu=or_null(
        record(
            cores=INTEGER,
            utilization_ratio=or_null(NUMBER),
            load_1m=or_null(NUMBER),
            load_5m=or_null(NUMBER),
            load_15m=or_null(NUMBER),
        )
    ),
    memory=or_null(record(total_bytes=INTEGER, available_bytes=or_null(INTEGER))),
    pressure=or_null(record(cpu=_PRESSURE, memory=_PRESSURE, io=_PRESSURE)),
    sources=by_key(
        record(
            state=one_of("fresh", "stale", "failing", "absent"),
            essential=FLAG,
            last_success_unix_s=or_null(NUMBER),
            failures=by_key(INTEGER, "reason"),
            detail=TEXT,
            remedy=TEXT,
        ),
        "name",
    ),
    agent=or_null(
        record(
            version=TEXT,
            started_unix_s=NUMBER,
            cpu_seconds_total=or_null(NUMBER),
            rss_bytes=or_null(INTEGER),
            connections_open=INTEGER,
        )
    ),
)


def node(snapshot: Snapshot) -> Json:
    readings = snapshot.readings
    return {
        "health": _health(readings.cpu, readings.memory, readings.pressure),
        "cpu": _cpu(readings.cpu),
        "memory": _memory(readings.memory),
        "pressure": _pressures(readings.pressure),
        "sources": {name: _source(state, snapshot.monotonic_s) for name, state in sorted(snapshot.sources.items())},
        "agent": _agent(snapshot),
    }


def state_of(state: SourceState, now_monotonic_s: float) -> str:
    if state.is_fresh(now_monotonic_s):
        return "fresh"
    if state.absent:
        return "absent"
    return "stale" if state.up else "failing"


def _health(cpu: CpuReading | None, memory: MemoryReading | None, pressure: PressureReading | None) -> Json:
    health = health_of(cpu, memory, pressure)
    if health is None:
        return None
    return {
        "score": round(health.score, 2),
        "completeness_ratio": round(health.completeness_ratio, 3),
        "component_ratios": {name: round(value, 3) for name, value in health.components.items()},
    }


def _cpu(cpu: CpuReading | None) -> Json:
    if cpu is None:
        return None
    return {
        "cores": cpu.cores,
        "utilization_ratio": rounded(cpu.utilization_ratio, 4),
        "load_1m": rounded(cpu.load_1m, 2),
        "load_5m": rounded(cpu.load_5m, 2),
        "load_15m": rounded(cpu.load_15m, 2),
    }


def _memory(memory: MemoryReading | None) -> Json:
    return None if memory is None else {"total_bytes": memory.total_bytes, "available_bytes": memory.available_bytes}


def _pressures(pressure: PressureReading | None) -> Json:
    if pressure is None:
        return None
    return {"cpu": _pressure(pressure.cpu), "memory": _pressure(pressure.memory), "io": _pressure(pressure.io)}


def _pressure(pressure: Pressure | None) -> Json:
    return None if pressure is None else {"some": _line(pressure.some), "full": _line(pressure.full)}


def _line(line: PressureLine | None) -> Json:
    if line is None:
        return None
    return {
        "avg10_percent": round(line.avg10, 2),
        "avg60_percent": round(line.avg60, 2),
        "avg300_percent": round(line.avg300, 2),
        "stalled_seconds_total": round(line.stalled_seconds_total, 3),
    }


def _source(state: SourceState, now_monotonic_s: float) -> Json:
    word = state_of(state, now_monotonic_s)
    fresh = word == "fresh"
    return {
        "state": word,
        "essential": state.essential,
        "last_success_unix_s": rounded(state.last_success_wall_s, 1),
        "failures": dict(state.failures),
        # What was wrong before is not what is wrong now.
        "detail": "" if fresh else state.detail,
        "remedy": "" if fresh else state.remedy,
    }


def _agent(snapshot: Snapshot) -> Json:
    agent = snapshot.readings.agent
    if agent is None:
        return None
    return {
        "version": agent.version,
        "started_unix_s": round(agent.started_wall_s, 1),
        "cpu_seconds_total": rounded(agent.cpu_seconds, 2),
        "rss_bytes": agent.rss_bytes,
        "connections_open": agent.connections_open,
    }
