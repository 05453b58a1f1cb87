"""The configurations of Prometheus and Alertmanager as values, and the paths of the stack's files. Pure.

Prometheus has one job per dialect. Alertmanager has receivers, routes with their timing, and inhibitions.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpucommons.config.stack import StackSettings

# The paths of the stack's files, the same inside and outside of a container. Pure.


@dataclass(frozen=True, slots=True)
class Layout:
    """One data directory: what gpucommons writes (config, run), what the programs keep, and the secrets."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "config"

    def config_of(self, service: str) -> Path:
        """One directory per program, so that a program sees only its own secrets."""
        return self.config / service

    @property
    def prometheus_config(self) -> Path:
        return self.config_of("prometheus") / "prometheus.yml"

    @property
    def alertmanager_config(self) -> Path:
        return self.config_of("alertmanager") / "alertmanager.yml"

    @property
    def compose_file(self) -> Path:
        return self.config / "compose.yaml"

    @property
    def targets(self) -> Path:
        return self.root / "targets"

    @property
    def secrets(self) -> Path:
        return self.root / "secrets"

    @property
    def grafana_password(self) -> Path:
        return self.secrets / "grafana_admin_password"

    @property
    def logs(self) -> Path:
        return self.root / "log"

    @property
    def run(self) -> Path:
        return self.root / "run"

    def data(self, service: str) -> Path:
        return self.root / service

    def log(self, service: str) -> Path:
        return self.logs / f"{service}.log"


def default_root(home: Path, state_home: str | None, is_root: bool) -> Path:
    if is_root:
        return Path("/var/lib/gpucommons/stack")
    return (Path(state_home) if state_home else home / ".local" / "state") / "gpucommons" / "stack"


# Prometheus's configuration as a value: one job per dialect. Pure.

Yaml = dict[str, Any]

# In the order of /metrics. By name: what a dialect contains does not matter here, and takes time to import.
_MAIN_DIALECTS = ("gpucommons", "node", "nvshare", "ds01", "dcgm", "vgpu")

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
            *(_job(settings, dialect) | _cluster_discovery() for dialect in scraped_dialects(settings)),
            {"job_name": "prometheus", "static_configs": [{"targets": ["127.0.0.1:9090"]}]},
        ],
    }


def scraped_dialects(settings: StackSettings) -> tuple[str, ...]:
    """The dialects of /metrics, and nodeexporter if it is set."""
    return (*_MAIN_DIALECTS, "nodeexporter") if settings.nodeexporter else _MAIN_DIALECTS


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
            _job(settings, dialect)
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


def _cluster_discovery() -> Yaml:
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


# Alertmanager's configuration as a value: receivers, routes with their timing, and inhibitions. Pure.

HOUR_S = 3600.0
# The alerts of a group have one name and one node. A card of Teams has a title and Markdown, a message of Slack or
# Mattermost a title and its own marks: one star for bold.
_TITLE = "{{ .Status | toUpper }}: {{ .CommonLabels.alertname }} ({{ .CommonLabels.severity }})"
_SLACK_TEXT = "{{ range .Alerts }}*{{ .Annotations.summary }}*\n{{ .Annotations.description }}\n{{ end }}"
_SLACK_COLOUR = (
    '{{ if eq .Status "resolved" }}good'
    '{{ else if eq .CommonLabels.severity "critical" }}danger'
    "{{ else }}warning{{ end }}"
)
_TEAMS_TEXT = "{{ range .Alerts }}**{{ .Annotations.summary }}**\n\n{{ .Annotations.description }}\n\n{{ end }}"


# Alerts of a cause, and alerts of its effects on the same node. One agent serves all dialects: without it none is.
_EFFECTS = (
    ("GPUCommonsAgentDown", "DS01(DCGM|Node)?ExporterDown"),
    ("DS01ExporterDown", "DS01(DCGM|Node)ExporterDown"),
    ("DS01DCGMExporterDown", "DS01NodeExporterDown"),
    ("GPUCommonsDriverDown", "GPUCommonsGPU(Lost|Missing)"),
)


@dataclass(frozen=True, slots=True)
class NotificationTiming:
    """Critical alerts are sent at once and repeated every hour, warnings every 4 hours, information every day."""

    critical_wait_s: float = 0.0
    critical_interval_s: float = 60.0
    wait_s: float = 30.0
    interval_s: float = 300.0
    critical_repeat_s: float = HOUR_S
    warning_repeat_s: float = 4 * HOUR_S
    info_repeat_s: float = 24 * HOUR_S


@dataclass(frozen=True, slots=True)
class AlertmanagerSecrets:
    """The URL of the webhook, which makes the configuration a secret, and the files that hold the other secrets."""

    webhook_url: str | None
    webhook_token_file: str
    smtp_password_file: str
    slack_webhook_url_file: str
    teams_webhook_url_file: str


def alertmanager_config(
    settings: StackSettings, secrets: AlertmanagerSecrets, timing: NotificationTiming | None = None
) -> Yaml:
    timing = timing or NotificationTiming()
    return {
        **({"global": _smtp(settings, secrets)} if settings.smtp_smarthost else {}),
        "route": _route(timing),
        "inhibit_rules": _inhibitions(),
        "receivers": [
            {"name": severity, **_channels(settings, secrets)} for severity in ("critical", "warning", "info")
        ],
    }


def alertmanager_flags(settings: StackSettings, layout: Layout) -> list[str]:
    return [
        f"--config.file={layout.alertmanager_config}",
        f"--storage.path={layout.data('alertmanager')}",
        f"--web.listen-address={settings.alertmanager_listen}",
        "--cluster.listen-address=",
    ]


def _smtp(settings: StackSettings, secrets: AlertmanagerSecrets) -> Yaml:
    smtp: Yaml = {
        "smtp_smarthost": settings.smtp_smarthost,
        "smtp_from": settings.smtp_from,
        "smtp_require_tls": settings.smtp_require_tls,
    }
    if settings.smtp_username:
        smtp["smtp_auth_username"] = settings.smtp_username
        smtp["smtp_auth_password_file"] = secrets.smtp_password_file
    return smtp


def _route(timing: NotificationTiming) -> Yaml:
    def branch(severity: str, wait_s: float, interval_s: float, repeat_s: float) -> Yaml:
        return {
            "receiver": severity,
            "matchers": [f'severity="{severity}"'],
            "group_wait": duration(wait_s),
            "group_interval": duration(interval_s),
            "repeat_interval": duration(repeat_s),
        }

    return {
        # An alert without a severity is treated as a warning, so that it is not lost.
        "receiver": "warning",
        "group_by": ["alertname", "node"],
        "group_wait": duration(timing.wait_s),
        "group_interval": duration(timing.interval_s),
        "repeat_interval": duration(timing.warning_repeat_s),
        "routes": [
            branch("critical", timing.critical_wait_s, timing.critical_interval_s, timing.critical_repeat_s),
            branch("warning", timing.wait_s, timing.interval_s, timing.warning_repeat_s),
            branch("info", timing.wait_s, timing.interval_s, timing.info_repeat_s),
        ],
    }


def _inhibitions() -> list[Yaml]:
    """Alerts are matched by GPU and topic, not by name: two levels of one problem have different names.

    Alertmanager treats two missing labels as equal, so each compared label is also required. The first rules are for
    one cause with several effects: a node that is off, a driver that does not answer, a GPU that is lost.
    """
    return [
        *(
            {
                "source_matchers": [f'alertname="{cause}"'],
                "target_matchers": [f'alertname=~"{effects}"'],
                "equal": ["node"],
            }
            for cause, effects in _EFFECTS
        ),
        {
            "source_matchers": ['alertname="GPUCommonsGPULost"'],
            "target_matchers": ['alertname!="GPUCommonsGPULost"', 'gpu_uuid!=""'],
            "equal": ["node", "gpu_uuid"],
        },
        {
            "source_matchers": ['alertname=~"GPUCommonsXID.*"'],
            "target_matchers": ['alertname="DS01GPUXIDError"', 'gpu_uuid!=""'],
            "equal": ["node", "gpu_uuid"],
        },
        {
            "source_matchers": ['severity="critical"', 'gpu_uuid!=""'],
            "target_matchers": ['severity=~"warning|info"', 'gpu_uuid!=""'],
            "equal": ["node", "gpu_uuid"],
        },
        {
            "source_matchers": ['severity="critical"', 'topic!=""'],
            "target_matchers": ['severity=~"warning|info"', 'topic!=""'],
            "equal": ["node", "gpu_uuid", "topic"],
        },
        {
            "source_matchers": ['severity="warning"', 'topic!=""'],
            "target_matchers": ['severity="info"', 'topic!=""'],
            "equal": ["node", "gpu_uuid", "topic"],
        },
    ]


def _channels(settings: StackSettings, secrets: AlertmanagerSecrets) -> Yaml:
    channels: Yaml = {}
    if settings.smtp_smarthost and settings.email_to:
        channels["email_configs"] = list(_emails(settings.email_to))
    if secrets.webhook_url:
        hook: Yaml = {"url": secrets.webhook_url, "send_resolved": True}
        if settings.webhook_token_file:
            hook["http_config"] = {"authorization": {"credentials_file": secrets.webhook_token_file}}
        channels["webhook_configs"] = [hook]
    if settings.slack_webhook_url_file:
        channels["slack_configs"] = [
            {
                "api_url_file": secrets.slack_webhook_url_file,
                "send_resolved": True,
                "color": _SLACK_COLOUR,
                "title": _TITLE,
                "text": _SLACK_TEXT,
                "fallback": _TITLE,
            }
        ]
    if settings.teams_webhook_url_file:
        channels["msteamsv2_configs"] = [
            {
                "webhook_url_file": secrets.teams_webhook_url_file,
                "send_resolved": True,
                "title": _TITLE,
                "text": _TEAMS_TEXT,
            }
        ]
    return channels


def _emails(addresses: str) -> Iterator[Yaml]:
    for address in addresses.split(","):
        if address.strip():
            yield {"to": address.strip(), "send_resolved": True}
