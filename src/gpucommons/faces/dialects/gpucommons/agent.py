"""The agent itself: its cost, its sources and snapshots, what it serves, and what it judges to be wrong."""

from collections import Counter
from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, Point, counter, gauge
from gpucommons.model.host import PressureLine, PressureReading
from gpucommons.model.problems import ProblemKind
from gpucommons.model.snapshot import Readings, Snapshot
from gpucommons.rules.health import node_health_of
from gpucommons.rules.problems import own_problems

# gpucommons_snapshot*, gpucommons_simulated: the snapshot that is served.

SIMULATED = gauge(
    "gpucommons_simulated", "Scenario that is simulated; 1 if present, and then no value is measured.", "scenario"
)
PUBLISHED = counter("gpucommons_snapshots_total", "Snapshots published since the agent started.")
TIME = gauge("gpucommons_snapshot_timestamp_seconds", "Unix time of the snapshot that is served.")

SNAPSHOTS_CATALOGUE = (SIMULATED, PUBLISHED, TIME)


def collect_snapshots(snapshot: Snapshot) -> Iterator[Family]:
    if snapshot.scenario is not None:
        yield SIMULATED.value(1, snapshot.scenario)
    yield PUBLISHED.value(snapshot.sequence + 1)
    yield TIME.value(snapshot.wall_s)


# gpucommons_agent_*: the version and the cost of the agent itself.

INFO = gauge("gpucommons_agent_info", "Version of the agent; always 1.", "version")
START_TIME = gauge("gpucommons_agent_start_timestamp_seconds", "Unix time at which the agent started.")
CPU_SECONDS = counter("gpucommons_agent_cpu_seconds_total", "CPU time that the agent has used.")
RSS = gauge("gpucommons_agent_rss_bytes", "Resident memory of the agent.")
DESCRIPTORS = gauge("gpucommons_agent_open_descriptors", "File descriptors that the agent has open.")
THREADS = gauge("gpucommons_agent_threads", "Threads of the agent.")

AGENT_CATALOGUE = (INFO, START_TIME, CPU_SECONDS, RSS, DESCRIPTORS, THREADS)


def collect_agent(snapshot: Snapshot) -> Iterator[Family]:
    agent = snapshot.readings.agent
    if agent is None:
        return
    yield INFO.value(1, agent.version)
    yield START_TIME.value(agent.started_wall_s)
    yield CPU_SECONDS.value(agent.cpu_seconds)
    yield RSS.value(agent.rss_bytes)
    yield DESCRIPTORS.value(agent.open_descriptors)
    yield THREADS.value(agent.threads)


# gpucommons_exposition_*: series and dialects that could not be served.

DUPLICATES = counter(
    "gpucommons_exposition_duplicates_dropped_total",
    "Series dropped because another series has the same name and labels.",
    "dialect",
)
EXPOSITION_FAILURES = counter(
    "gpucommons_exposition_dialect_failures_total",
    "Snapshots for which a dialect failed and its families were omitted.",
    "dialect",
)

EXPOSITION_CATALOGUE = (DUPLICATES, EXPOSITION_FAILURES)


def collect_exposition(snapshot: Snapshot) -> Iterator[Family]:
    agent = snapshot.readings.agent
    if agent is not None:
        yield DUPLICATES.of(((dialect,), count) for dialect, count in agent.duplicates_dropped.items())
        yield EXPOSITION_FAILURES.of(((dialect,), count) for dialect, count in agent.dialect_failures.items())


# gpucommons_web_*: connections and requests of the HTTP listeners.

CONNECTIONS = gauge("gpucommons_web_connections", "Open HTTP connections.")
REFUSED = counter(
    "gpucommons_web_connections_refused_total", "HTTP connections refused or closed by the agent, by reason.", "reason"
)
REQUESTS = counter("gpucommons_web_requests_total", "HTTP requests by handler and status.", "handler", "status")
CONFIG_RELOAD_OK = gauge(
    "gpucommons_web_config_reload_ok",
    "Result of the last reload of the web configuration file: 1 if in use, 0 if refused and the old one is in use.",
)

WEB_CATALOGUE = (CONNECTIONS, REFUSED, REQUESTS, CONFIG_RELOAD_OK)


def collect_web(snapshot: Snapshot) -> Iterator[Family]:
    agent = snapshot.readings.agent
    if agent is None:
        return
    yield CONNECTIONS.value(agent.connections_open)
    yield REFUSED.of(((reason,), count) for reason, count in agent.connections_refused.items())
    yield REQUESTS.of(((handler, str(status)), count) for (handler, status), count in agent.requests.items())
    if agent.web_config_reload_ok is not None:
        yield CONFIG_RELOAD_OK.value(int(agent.web_config_reload_ok))


# gpucommons_source_*: the state of each source, the duration of its reads, and its failures.

UP = gauge("gpucommons_source_up", "State of a source: 1 if its last read succeeded and is in use, else 0.", "source")
ABSENT = gauge(
    "gpucommons_source_absent", "Absence of what a source reads: 1 if this node does not have it, else 0.", "source"
)
DURATION = gauge("gpucommons_source_duration_seconds", "Duration of the last read of a source.", "source")
SOURCE_FAILURES = counter(
    "gpucommons_source_failures_total", "Reads of a source that failed, by reason.", "source", "reason"
)
LAST_SUCCESS = gauge(
    "gpucommons_source_last_success_timestamp_seconds", "Unix time of the last successful read of a source.", "source"
)

SOURCES_CATALOGUE = (UP, ABSENT, DURATION, SOURCE_FAILURES, LAST_SUCCESS)


def collect_sources(snapshot: Snapshot) -> Iterator[Family]:
    states = snapshot.sources.values()
    yield UP.of(((state.name,), int(state.up)) for state in states)
    yield ABSENT.of(((state.name,), int(state.absent)) for state in states)
    yield DURATION.of(((s.name,), s.duration_s) for s in states if s.duration_s is not None)
    yield SOURCE_FAILURES.of(
        ((state.name, reason), count) for state in states for reason, count in state.failures.items()
    )
    yield LAST_SUCCESS.of(((s.name,), s.last_success_wall_s) for s in states if s.last_success_wall_s is not None)


# gpucommons_health_*, gpucommons_pressure_*: the components of the node's health score, and pressure (PSI).

COMPONENT = gauge(
    "gpucommons_health_component",
    "Headroom of one component of node_health_score, 0 (none) to 1 (all); absent if it was not read.",
    "component",
)
COMPLETENESS = gauge(
    "gpucommons_health_completeness_ratio",
    "Weight of the components of node_health_score that were read, 0 to 1.",
)
PRESSURE = gauge(
    "gpucommons_pressure_ratio",
    "Share of a window in which some tasks, or all (full), waited for a resource, 0 to 1.",
    "resource",
    "kind",
    "window",
)
STALLED = counter(
    "gpucommons_pressure_stalled_seconds_total",
    "Time in which some tasks, or all (full), waited for a resource.",
    "resource",
    "kind",
)

HEALTH_CATALOGUE = (COMPONENT, COMPLETENESS, PRESSURE, STALLED)


def _lines(reading: PressureReading) -> Iterator[tuple[str, str, PressureLine]]:
    for resource, pressure in (("cpu", reading.cpu), ("memory", reading.memory), ("io", reading.io)):
        if pressure is None:
            continue
        for kind, line in (("some", pressure.some), ("full", pressure.full)):
            if line is not None:
                yield resource, kind, line


def _windows(resource: str, kind: str, line: PressureLine) -> Iterator[Point]:
    for window, percent in (("10s", line.avg10), ("60s", line.avg60), ("300s", line.avg300)):
        yield (resource, kind, window), percent / 100


def collect_health(snapshot: Snapshot) -> Iterator[Family]:
    readings = snapshot.readings
    health = node_health_of(readings.cpu, readings.memory, readings.pressure)
    if health is not None:
        yield COMPONENT.of(((name,), value) for name, value in health.components.items())
        yield COMPLETENESS.value(health.completeness_ratio)
    if readings.pressure is not None:
        lines = list(_lines(readings.pressure))
        yield PRESSURE.of(point for line in lines for point in _windows(*line))
        yield STALLED.of(((resource, kind), line.stalled_seconds_total) for resource, kind, line in lines)


# gpucommons_problems: what the agent itself judges to be wrong, by kind.

PROBLEMS = gauge(
    "gpucommons_problems",
    "Number of problems of a kind that the agent sees now; absent where the kind cannot be judged.",
    "kind",
)

PROBLEMS_CATALOGUE = (PROBLEMS,)


def collect_problems(snapshot: Snapshot) -> Iterator[Family]:
    counts = Counter(problem.kind for problem in own_problems(snapshot))
    yield PROBLEMS.of(((kind.value,), counts[kind]) for kind in ProblemKind if _is_judged(kind, snapshot.readings))


def _is_judged(kind: ProblemKind, readings: Readings) -> bool:
    if kind is ProblemKind.ALERT:
        return False
    if kind in (ProblemKind.SOURCE_FAILING, ProblemKind.DRIVER):
        return True
    if kind in (ProblemKind.LEDGER, ProblemKind.OVER_QUOTA):
        return readings.ledger is not None
    if kind is ProblemKind.HELD_IDLE:
        return readings.slots is not None
    return readings.gpus is not None


CATALOGUE = (
    *SNAPSHOTS_CATALOGUE,
    *AGENT_CATALOGUE,
    *EXPOSITION_CATALOGUE,
    *WEB_CATALOGUE,
    *SOURCES_CATALOGUE,
    *HEALTH_CATALOGUE,
    *PROBLEMS_CATALOGUE,
)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    yield from collect_snapshots(snapshot)
    yield from collect_agent(snapshot)
    yield from collect_exposition(snapshot)
    yield from collect_web(snapshot)
    yield from collect_sources(snapshot)
    yield from collect_health(snapshot)
    yield from collect_problems(snapshot)
