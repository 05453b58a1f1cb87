"""Prometheus's configuration as a value: one job per dialect, at the interval its users expect. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpucommons.config.stack import StackSettings
from gpucommons.faces.dialects.all import DIALECTS
from gpucommons.faces.dialects.dialect import Dialect

Yaml = dict[str, Any]

# A node that a file lists without naming it goes by the host part of its address.
_NAME_NODE_BY_ADDRESS: Yaml = {
    "source_labels": ["node", "__address__"],
    "regex": r";(\[[^\]]+\]|[^:]+).*",
    "target_label": "node",
}


@dataclass(frozen=True, slots=True)
class Places:
    """Where Prometheus finds what others write: our rules, the site's, the files that list nodes, its secrets."""

    rules: str
    site_rules: str
    targets: str
    remote_write_token: str
    agents_ca: str
    agents_password: str


def duration(seconds: float) -> str:
    milliseconds = round(seconds * 1000)
    return f"{milliseconds // 1000}s" if milliseconds % 1000 == 0 else f"{milliseconds}ms"


def prometheus_config(settings: StackSettings, places: Places, node: str, with_grafana: bool) -> Yaml:
    config: Yaml = {
        "global": {
            "scrape_interval": duration(settings.scrape_interval_s),
            "scrape_timeout": duration(min(settings.scrape_interval_s, 10.0)),
            "evaluation_interval": duration(settings.scrape_interval_s),
        },
        "rule_files": [places.rules, *([places.site_rules] if places.site_rules else [])],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [settings.alertmanager_listen]}]}]},
        "scrape_configs": [
            *_agent_jobs(settings, places, node),
            *_own_jobs(settings, node, with_grafana),
        ],
    }
    if settings.remote_write_url:
        config["remote_write"] = [_remote_write(settings, places)]
    return config


def retention_flags(settings: StackSettings) -> tuple[str, str]:
    return (
        f"--storage.tsdb.retention.time={settings.retention_days}d",
        f"--storage.tsdb.retention.size={settings.retention_gigabytes}GB",
    )


def settings_rules(settings: StackSettings) -> Yaml:
    """What a rule has to know of the settings, as a series: rule files themselves stay plain data."""
    size_bytes = settings.retention_gigabytes * 2**30
    record = {"record": "gpucommons:stack_retention_bytes", "expr": f"vector({size_bytes})"}
    return {"groups": [{"name": "gpucommons-settings", "rules": [record]}]}


def cluster_config(settings: StackSettings, rules: str) -> Yaml:
    """For a Prometheus inside a cluster: the agents are found through the Kubernetes API."""
    interval = duration(settings.scrape_interval_s)
    return {
        "global": {"scrape_interval": interval, "evaluation_interval": interval},
        "rule_files": [rules],
        "scrape_configs": [
            *(_job(settings, dialect.name) | _found_in_cluster() for dialect in scraped_dialects(settings)),
            {"job_name": "prometheus", "static_configs": [{"targets": ["127.0.0.1:9090"]}]},
        ],
    }


def scraped_dialects(settings: StackSettings) -> tuple[Dialect, ...]:
    """The dialects of the main page, and nodeexporter where the setting asks for it."""
    return tuple(
        dialect for dialect in DIALECTS if dialect.on_main or (settings.nodeexporter and dialect.name == "nodeexporter")
    )


def _job(settings: StackSettings, dialect: str) -> Yaml:
    interval_s = settings.ds01_interval_s if dialect == "ds01" else settings.scrape_interval_s
    return {
        "job_name": dialect,
        "metrics_path": f"/metrics/{dialect}",
        "scrape_interval": duration(interval_s),
        "scrape_timeout": duration(min(interval_s, 10.0)),
        # A pod, container or job that a series names is its own, not the one that was scraped.
        "honor_labels": True,
    }


def _agent_jobs(settings: StackSettings, places: Places, node: str) -> Iterator[Yaml]:
    for dialect in scraped_dialects(settings):
        yield (
            _job(settings, dialect.name)
            | _trust(settings, places)
            | {
                "static_configs": [{"targets": [settings.agent], "labels": {"node": node}}],
                "file_sd_configs": [{"files": [places.targets]}],
                "relabel_configs": [_NAME_NODE_BY_ADDRESS],
            }
        )


def _trust(settings: StackSettings, places: Places) -> Yaml:
    """How the agents are known to be who they are, and how we are known to them."""
    trust: Yaml = {}
    if settings.agents_ca_file:
        trust |= {"scheme": "https", "tls_config": {"ca_file": places.agents_ca}}
    if settings.agents_username:
        trust["basic_auth"] = {"username": settings.agents_username, "password_file": places.agents_password}
    return trust


def _found_in_cluster() -> Yaml:
    def keep(label: str, value: str) -> Yaml:
        return {"source_labels": [f"__meta_kubernetes_pod_{label}"], "regex": value, "action": "keep"}

    return {
        "kubernetes_sd_configs": [{"role": "pod"}],
        "relabel_configs": [
            keep("label_app_kubernetes_io_name", "gpucommons"),
            keep("container_port_name", "metrics"),
            {"source_labels": ["__meta_kubernetes_pod_node_name"], "target_label": "node"},
        ],
    }


def _own_jobs(settings: StackSettings, node: str, with_grafana: bool) -> Iterator[Yaml]:
    addresses: Mapping[str, str] = {
        "prometheus": settings.prometheus_listen,
        "alertmanager": settings.alertmanager_listen,
        **({"grafana": settings.grafana_listen} if with_grafana else {}),
    }
    for name, address in addresses.items():
        yield {"job_name": name, "static_configs": [{"targets": [address], "labels": {"node": node}}]}


def _remote_write(settings: StackSettings, places: Places) -> Yaml:
    target: Yaml = {"url": settings.remote_write_url}
    if settings.remote_write_token_file:
        target["authorization"] = {"credentials_file": places.remote_write_token}
    return target
