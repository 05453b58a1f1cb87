"""Alertmanager's configuration as a value: receivers, routes with their timing, and inhibitions. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gpucommons.config.stack import StackSettings
from gpucommons.stack.layout import Layout
from gpucommons.stack.prometheus import duration

Yaml = dict[str, Any]

HOUR_S = 3600.0
# The alerts of a group have one name and one node. A card of Teams has a title and Markdown.
_TEAMS_TITLE = "{{ .Status | toUpper }}: {{ .CommonLabels.alertname }} ({{ .CommonLabels.severity }})"
_TEAMS_TEXT = "{{ range .Alerts }}**{{ .Annotations.summary }}**\n\n{{ .Annotations.description }}\n\n{{ end }}"


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

    Alertmanager treats two missing labels as equal, so each compared label is also required.
    """
    return [
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
    if settings.teams_webhook_url_file:
        channels["msteamsv2_configs"] = [
            {
                "webhook_url_file": secrets.teams_webhook_url_file,
                "send_resolved": True,
                "title": _TEAMS_TITLE,
                "text": _TEAMS_TEXT,
            }
        ]
    return channels


def _emails(addresses: str) -> Iterator[Yaml]:
    for address in addresses.split(","):
        if address.strip():
            yield {"to": address.strip(), "send_resolved": True}
