"""Rounds of expositions of one machine: the agent's, Debian's node_exporter's, and the agent's again."""

import time
from functools import partial

from gpucommons.config.settings import NodeExporterSettings
from running import RunningAgent, running_agent
from testbeds.node_exporter import fetched, running_node_exporter
from waiting import until

INTERVAL_S = "0.2"
OFTEN = {"GPUCOMMONS_SAMPLING_HOST_INTERVAL_S": INTERVAL_S}
SOURCES = ("cpu", "memory", "pressure", "kernel", "filesystems")


def read_since(agent: RunningAgent, wall_s: float) -> bool:
    """Whether each source that moves has been read, from its beginning, after this time."""
    body = agent.get("/metrics/gpucommons")[1]
    read = {
        line.split('"')[1]: float(line.split()[-1])
        for line in body.splitlines()
        if line.startswith("gpucommons_source_last_success_timestamp_seconds{")
    }
    return all(read.get(source, 0) > wall_s + 0.5 for source in SOURCES)


def served(agent: RunningAgent) -> str:
    return agent.get("/metrics/nodeexporter")[1]


def views(rounds: int) -> list[tuple[str, str, str]]:
    """With upstream's exclusions, which are our defaults; Debian's package has others."""
    chosen = NodeExporterSettings()
    exclusions = (
        f"--collector.filesystem.mount-points-exclude={chosen.filesystem_mount_points_exclude}",
        f"--collector.netdev.device-exclude={chosen.netdev_device_exclude}",
        "--collector.netclass.ignored-devices=^$",
        "--collector.textfile.directory=",
    )
    with (
        running_node_exporter(*exclusions) as theirs,
        running_agent("--interval", INTERVAL_S, environment=OFTEN) as agent,
    ):
        ours = partial(served, agent)
        until(
            lambda: "node_filesystem_size_bytes" in ours() and "node_uname_info" in ours(), "every source has been read"
        )
        taken = []
        for _ in range(rounds):
            before, peer = ours(), fetched(theirs)
            until(partial(read_since, agent, time.time()), "every source is read again")
            taken.append((before, peer, ours()))
        return taken
