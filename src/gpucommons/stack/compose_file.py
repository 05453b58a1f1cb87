"""The Docker compose file of the stack as a value: all services on the host's network, bound to loopback. Pure.

It uses only what both the compose plugin and docker-compose 1.29, which distributions still ship, support.
"""

from dataclasses import dataclass
from typing import Any

from gpucommons.config.stack import StackSettings
from gpucommons.stack.check import split_address
from gpucommons.stack.prometheus import Layout, alertmanager_flags, prometheus_flags

Yaml = dict[str, Any]

PROJECT = "gpucommons"
PROMETHEUS_IMAGE = "docker.io/prom/prometheus:v2.55.1"
ALERTMANAGER_IMAGE = "docker.io/prom/alertmanager:v0.28.1"
GRAFANA_IMAGE = "docker.io/grafana/grafana:11.6.0"
AGENT_IMAGE = "gpucommons:latest"


@dataclass(frozen=True, slots=True)
class ComposeHost:
    """`user` is the UID:GID that owns the data directory."""

    user: str
    has_gpus: bool


def compose_file(settings: StackSettings, layout: Layout, host: ComposeHost) -> Yaml:
    """Paths are the same inside and outside of the containers."""
    services = {
        "prometheus": _prometheus(settings, layout),
        "alertmanager": _alertmanager(settings, layout),
        "grafana": _grafana(settings, layout),
    }
    for name, service in services.items():
        services[name] = {"user": host.user} | _confinement() | service
    if not settings.run_agent:
        return {"services": services}
    services["agent"] = _confinement() | _agent(settings, host.has_gpus)
    return {"services": services, "volumes": {"gpucommons-state": {}}}


def _confinement() -> Yaml:
    return {
        "network_mode": "host",
        "restart": "unless-stopped",
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "tmpfs": ["/tmp"],
        "logging": {"driver": "json-file", "options": {"max-size": "10m", "max-file": "3"}},
    }


def _read_only(path: str) -> str:
    return f"{path}:{path}:ro"


def _prometheus(settings: StackSettings, layout: Layout) -> Yaml:
    data = layout.data("prometheus")
    seen = {str(layout.config_of("prometheus")), settings.targets_dir or str(layout.targets)}
    if settings.rules_dir:
        seen.add(settings.rules_dir)
    return {
        "image": PROMETHEUS_IMAGE,
        "command": prometheus_flags(settings, layout),
        "volumes": [*(_read_only(path) for path in sorted(seen)), f"{data}:{data}"],
    }


def _alertmanager(settings: StackSettings, layout: Layout) -> Yaml:
    data = layout.data("alertmanager")
    return {
        "image": ALERTMANAGER_IMAGE,
        "command": alertmanager_flags(settings, layout),
        "volumes": [_read_only(str(layout.config_of("alertmanager"))), f"{data}:{data}"],
    }


def _grafana(settings: StackSettings, layout: Layout) -> Yaml:
    host, port = split_address(settings.grafana_listen)
    data = layout.data("grafana")
    environment = {
        "GF_SERVER_HTTP_ADDR": host,
        "GF_SERVER_HTTP_PORT": str(port),
        "GF_PATHS_DATA": str(data),
        "GF_PATHS_PLUGINS": str(data / "plugins"),
        "GF_PATHS_PROVISIONING": str(layout.config_of("grafana")),
        "GF_SECURITY_ADMIN_USER": settings.grafana_admin_user,
        "GF_SECURITY_ADMIN_PASSWORD__FILE": str(layout.grafana_password),
        "GF_USERS_ALLOW_SIGN_UP": "false",
        "GF_ANALYTICS_REPORTING_ENABLED": "false",
        "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
        # Otherwise Grafana searches for plugins on the network at every start.
        "GF_PLUGINS_PREINSTALL_DISABLED": "true",
        "GF_METRICS_ENABLED": "true",
    }
    if settings.grafana_root_url:
        environment["GF_SERVER_ROOT_URL"] = settings.grafana_root_url
    return {
        "image": GRAFANA_IMAGE,
        "environment": environment,
        "volumes": [
            _read_only(str(layout.config_of("grafana"))),
            _read_only(str(layout.grafana_password)),
            f"{data}:{data}",
        ],
    }


def _agent(settings: StackSettings, has_gpus: bool) -> Yaml:
    """The agent sees the processes and GPUs of the host and cannot change the host."""
    service: Yaml = {
        "image": AGENT_IMAGE,
        # Docker's socket is accessible to root only. This root has no capabilities.
        "user": "0:0",
        "command": ["up", "--listen", settings.agent, "--path.procfs", "/host/proc"],
        "pid": "host",
        "volumes": [
            "/proc:/host/proc:ro",
            "/sys/fs/cgroup:/sys/fs/cgroup:ro",
            "/var/run/docker.sock:/var/run/docker.sock:ro",
            # The agent's API socket, for the commands of local users.
            "/run/gpucommons:/run/gpucommons",
            "gpucommons-state:/var/lib/gpucommons",
        ],
    }
    if has_gpus:
        devices = [{"driver": "nvidia", "count": "all", "capabilities": ["utility"]}]
        service["deploy"] = {"resources": {"reservations": {"devices": devices}}}
    return service
