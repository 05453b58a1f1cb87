"""gpucommons_web_*: connections and requests of the HTTP listeners."""

from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, counter, gauge
from gpucommons.model.snapshot import Snapshot

CONNECTIONS = gauge("gpucommons_web_connections", "Open HTTP connections.")
REFUSED = counter(
    "gpucommons_web_connections_refused_total", "HTTP connections refused or closed by the agent, by reason.", "reason"
)
REQUESTS = counter("gpucommons_web_requests_total", "HTTP requests by handler and status.", "handler", "status")
CONFIG_RELOAD_OK = gauge(
    "gpucommons_web_config_reload_ok",
    "Result of the last reload of the web configuration file: 1 if in use, 0 if refused and the old one is in use.",
)

CATALOGUE = (CONNECTIONS, REFUSED, REQUESTS, CONFIG_RELOAD_OK)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    agent = snapshot.readings.agent
    if agent is None:
        return
    yield CONNECTIONS.value(agent.connections_open)
    yield REFUSED.of(((reason,), count) for reason, count in agent.connections_refused.items())
    yield REQUESTS.of(((handler, str(status)), count) for (handler, status), count in agent.requests.items())
    if agent.web_config_reload_ok is not None:
        yield CONFIG_RELOAD_OK.value(int(agent.web_config_reload_ok))
