"""Prometheus's configuration as a value: one job per dialect. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpucommons.config.stack import StackSettings
from gpucommons.faces.dialects.all import DIALECTS
from gpucommons.faces.dialects.dialect import Dialect
from gpucommons.stack.layout import Layout

Yaml = dict[str, Any]

# A listed node without a label `node` is named by the host part of its address.
_NAME_NODE_BY_ADDRESS: Yaml = {
    "source_labels": ["node", "__address__"],
    "regex": r";(\[[^\]]+\]|[^:]+).*",
    "target_label": "node",
}


@dataclass(frozen=True, slots=True)
class PrometheusPaths:
    """Files that Prometheus reads: our rules, the site's rules, lists of nodes, and secrets."""

    rules: str
    site_rules: str
    targets: str
    remote_write_token: str
    agents_ca: str
    agents_password: str


def duration(seconds: float) -> str:
    milliseconds = round(seconds * 1000)
    return f"{milliseconds // 1000}s" if milliseconds % 1000 == 0 else f"{milliseconds}ms"


def prometheus_config(settings: StackSettings, paths: PrometheusPaths, node: str, with_grafana: bool) -> Yaml:
    config: Yaml = {
        "global": {
            "scrape_interval": duration(settings.scrape_interval_s),
            "scrape_timeout": duration(min(settings.scrape_interval_s, 10.0)),
            "evaluation_interval": duration(settings.scrape_interval_s),
        },
        "rule_files": [paths.rules, *([paths.site_rules] if paths.site_rules else [])],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [settings.alertmanager_listen]}]}]},
        "scrape_configs": [
            *_agent_jobs(settings, paths, node),
            *_own_jobs(settings, node, with_grafana),
        ],
    }
    if settings.remote_write_url:
        config["remote_write"] = [_remote_write(settings, paths)]
    return config


def prometheus_flags(settings: StackSettings, layout: Layout) -> list[str]:
    return [
        f"--config.file={layout.prometheus_config}",
        f"--storage.tsdb.path={layout.data('prometheus')}",
        f"--web.listen-address={settings.prometheus_listen}",
        f"--storage.tsdb.retention.time={settings.retention_days}d",
        f"--storage.tsdb.retention.size={settings.retention_gigabytes}GB",
    ]


def settings_rules(settings: StackSettings) -> Yaml:
    """Settings that rules need, as a recorded series: the rule files themselves are static."""
    size_bytes = settings.retention_gigabytes * 2**30
    record = {"record": "gpucommons:stack_retention_bytes", "expr": f"vector({size_bytes})"}
    return {"groups": [{"name": "gpucommons-settings", "rules": [record]}]}


def cluster_config(settings: StackSettings, rules: str) -> Yaml:
    """For a Prometheus in a cluster: it finds the agents through the Kubernetes API."""
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
    """The dialects of /metrics, and nodeexporter if it is set."""
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
        # Labels such as pod, container and job describe the series, not the scraped target.
        "honor_labels": True,
    }


def _agent_jobs(settings: StackSettings, paths: PrometheusPaths, node: str) -> Iterator[Yaml]:
    for dialect in scraped_dialects(settings):
        yield (
            _job(settings, dialect.name)
            | _credentials(settings, paths)
            | {
                "static_configs": [{"targets": [settings.agent], "labels": {"node": node}}],
                "file_sd_configs": [{"files": [paths.targets]}],
                "relabel_configs": [_NAME_NODE_BY_ADDRESS],
            }
        )


def _credentials(settings: StackSettings, paths: PrometheusPaths) -> Yaml:
    """The authority that signed the agents' certificates, and the login that they require."""
    credentials: Yaml = {}
    if settings.agents_ca_file:
        credentials |= {"scheme": "https", "tls_config": {"ca_file": paths.agents_ca}}
    if settings.agents_username:
        credentials["basic_auth"] = {"username": settings.agents_username, "password_file": paths.agents_password}
    return credentials


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


def _remote_write(settings: StackSettings, paths: PrometheusPaths) -> Yaml:
    target: Yaml = {"url": settings.remote_write_url}
    if settings.remote_write_token_file:
        target["authorization"] = {"credentials_file": paths.remote_write_token}
    return target
