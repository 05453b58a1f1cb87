"""gpucommons_agent_*: the version and the cost of the agent itself."""

from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, counter, gauge
from gpucommons.model.snapshot import Snapshot

INFO = gauge("gpucommons_agent_info", "Version of the agent; always 1.", "version")
START_TIME = gauge("gpucommons_agent_start_timestamp_seconds", "Unix time at which the agent started.")
CPU_SECONDS = counter("gpucommons_agent_cpu_seconds_total", "CPU time that the agent has used.")
RSS = gauge("gpucommons_agent_rss_bytes", "Resident memory of the agent.")
DESCRIPTORS = gauge("gpucommons_agent_open_descriptors", "File descriptors that the agent has open.")
THREADS = gauge("gpucommons_agent_threads", "Threads of the agent.")

CATALOGUE = (INFO, START_TIME, CPU_SECONDS, RSS, DESCRIPTORS, THREADS)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    agent = snapshot.readings.agent
    if agent is None:
        return
    yield INFO.value(1, agent.version)
    yield START_TIME.value(agent.started_wall_s)
    yield CPU_SECONDS.value(agent.cpu_seconds)
    yield RSS.value(agent.rss_bytes)
    yield DESCRIPTORS.value(agent.open_descriptors)
    yield THREADS.value(agent.threads)
