"""gpucommons_agent_*, _snapshot_*, _web_*, _simulated: the agent itself, its cost and what it dropped."""

from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, counter, gauge
from gpucommons.model.agent import AgentReading
from gpucommons.model.snapshot import Snapshot

SIMULATED = gauge(
    "gpucommons_simulated", "1 if nothing here was measured: the named scenario is being played.", "scenario"
)
SNAPSHOT_SEQUENCE = counter("gpucommons_snapshots_total", "Snapshots that were published since the agent started.")
SNAPSHOT_TIME = gauge("gpucommons_snapshot_timestamp_seconds", "Unix time of the snapshot that is served.")
INFO = gauge("gpucommons_agent_info", "1; the version that runs.", "version")
START_TIME = gauge("gpucommons_agent_start_timestamp_seconds", "Unix time at which the agent started.")
CPU_SECONDS = counter("gpucommons_agent_cpu_seconds_total", "CPU time that the agent itself has used.")
RSS = gauge("gpucommons_agent_rss_bytes", "Memory of the agent itself that is resident.")
DESCRIPTORS = gauge("gpucommons_agent_open_descriptors", "File descriptors that the agent holds.")
THREADS = gauge("gpucommons_agent_threads", "Threads of the agent.")
DUPLICATES = counter(
    "gpucommons_exposition_duplicates_dropped_total",
    "Series that were not served because another of the same name and labels was.",
    "dialect",
)
DIALECT_FAILURES = counter(
    "gpucommons_exposition_dialect_failures_total",
    "Snapshots that a dialect could not be drawn from, so that its families were left out.",
    "dialect",
)
CONNECTIONS = gauge("gpucommons_web_connections", "HTTP connections that are open.")
REFUSED = counter(
    "gpucommons_web_connections_refused_total",
    "HTTP connections that were refused or ended by us, by reason.",
    "reason",
)
REQUESTS = counter("gpucommons_web_requests_total", "HTTP requests by handler and status.", "handler", "status")
CONFIG_RELOAD_OK = gauge(
    "gpucommons_web_config_reload_ok",
    "0 if the changed web configuration file was refused and the old one is in use.",
)

CATALOGUE = (
    SIMULATED,
    SNAPSHOT_SEQUENCE,
    SNAPSHOT_TIME,
    INFO,
    START_TIME,
    CPU_SECONDS,
    RSS,
    DESCRIPTORS,
    THREADS,
    DUPLICATES,
    DIALECT_FAILURES,
    CONNECTIONS,
    REFUSED,
    REQUESTS,
    CONFIG_RELOAD_OK,
)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    if snapshot.scenario is not None:
        yield SIMULATED.value(1, snapshot.scenario)
    yield SNAPSHOT_SEQUENCE.value(snapshot.sequence + 1)
    yield SNAPSHOT_TIME.value(snapshot.wall_s)
    if snapshot.readings.agent is not None:
        yield from _own(snapshot.readings.agent)


def _own(agent: AgentReading) -> Iterator[Family]:
    yield INFO.value(1, agent.version)
    yield START_TIME.value(agent.started_wall_s)
    yield CPU_SECONDS.value(agent.cpu_seconds)
    yield RSS.value(agent.rss_bytes)
    yield DESCRIPTORS.value(agent.open_descriptors)
    yield THREADS.value(agent.threads)
    yield DUPLICATES.of(((dialect,), count) for dialect, count in agent.duplicates_dropped.items())
    yield DIALECT_FAILURES.of(((dialect,), count) for dialect, count in agent.dialect_failures.items())
    yield CONNECTIONS.value(agent.connections_open)
    yield REFUSED.of(((reason,), count) for reason, count in agent.connections_refused.items())
    yield REQUESTS.of(((handler, str(status)), count) for (handler, status), count in agent.requests.items())
    if agent.web_config_reload_ok is not None:
        yield CONFIG_RELOAD_OK.value(int(agent.web_config_reload_ok))
