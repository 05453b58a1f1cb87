"""Every setting of the agent, one frozen section per table of the TOML file. Values only: reads nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpucommons.base.address import check_page_url
from gpucommons.config.accounts import AccountsSettings, EventsSettings, LedgerSettings, QuotaSettings
from gpucommons.config.dialects import DcgmSettings, NodeExporterSettings, VgpuSettings
from gpucommons.config.idle import IdleRuleSettings, IdleSettings, MailSettings, WebhookSettings
from gpucommons.config.leases import LeaseQuotaSettings, LeasesSettings
from gpucommons.config.option import check_url, option
from gpucommons.config.scheduler import ParkingSettings, SchedulerSettings, SharingQuotaSettings
from gpucommons.config.sources import (
    AlertsSettings,
    Ds01Settings,
    KubernetesSettings,
    OwnersSettings,
    PathSettings,
    ProcessesSettings,
    SamplingSettings,
)
from gpucommons.config.stack import StackSettings
from gpucommons.config.web import ListenersSettings, PrivacySettings, WebSettings


@dataclass(frozen=True, slots=True)
class HistorySettings:
    prometheus_url: str = option(
        "",
        "URL of a Prometheus that scrapes this agent, for history beyond the 24 h in memory; empty: none",
        check=check_url,
    )
    prometheus_selector: str = option(
        "", 'label matchers that select this node there, such as instance="gpu1:9460"; empty: none'
    )


@dataclass(frozen=True, slots=True)
class FleetSettings:
    prometheus_url: str = option(
        "",
        "URL of a Prometheus or VictoriaMetrics that scrapes all nodes, for /fleet and `--fleet`; empty: none",
        check=check_url,
    )
    prometheus_selector: str = option(
        "", 'label matchers that select the nodes there, such as job="gpucommons"; empty: every node that it has'
    )
    page_url: str = option(
        "http://{instance}/",
        "address of a node's page, with {instance} (the label), {host} (the label without its port) or {node} (the "
        "label `node`, else the host)",
        check=check_page_url,
    )


@dataclass(frozen=True, slots=True)
class LogSettings:
    format: str = option("human", "format of log lines: text, or one JSON object per line", choices=("human", "json"))
    level: str = option("info", "lowest level that is logged", choices=("debug", "info", "warning", "error"))


@dataclass(frozen=True, slots=True)
class Settings:
    web: WebSettings = field(default_factory=WebSettings)
    listeners: ListenersSettings = field(default_factory=ListenersSettings)
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    processes: ProcessesSettings = field(default_factory=ProcessesSettings)
    path: PathSettings = field(default_factory=PathSettings)
    owners: OwnersSettings = field(default_factory=OwnersSettings)
    kubernetes: KubernetesSettings = field(default_factory=KubernetesSettings)
    nodeexporter: NodeExporterSettings = field(default_factory=NodeExporterSettings)
    dcgm: DcgmSettings = field(default_factory=DcgmSettings)
    vgpu: VgpuSettings = field(default_factory=VgpuSettings)
    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
    sharing_quotas: Mapping[str, SharingQuotaSettings] = field(default_factory=dict)
    parking: ParkingSettings = field(default_factory=ParkingSettings)
    leases: LeasesSettings = field(default_factory=LeasesSettings)
    lease_quotas: Mapping[str, LeaseQuotaSettings] = field(default_factory=dict)
    idle: IdleSettings = field(default_factory=IdleSettings)
    idle_rules: Mapping[str, IdleRuleSettings] = field(default_factory=dict)
    mail: MailSettings = field(default_factory=MailSettings)
    webhook: WebhookSettings = field(default_factory=WebhookSettings)
    ledger: LedgerSettings = field(default_factory=LedgerSettings)
    accounts: AccountsSettings = field(default_factory=AccountsSettings)
    events: EventsSettings = field(default_factory=EventsSettings)
    ds01: Ds01Settings = field(default_factory=Ds01Settings)
    quotas: Mapping[str, QuotaSettings] = field(default_factory=dict)
    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    history: HistorySettings = field(default_factory=HistorySettings)
    fleet: FleetSettings = field(default_factory=FleetSettings)
    alerts: AlertsSettings = field(default_factory=AlertsSettings)
    log: LogSettings = field(default_factory=LogSettings)
    stack: StackSettings = field(default_factory=StackSettings)
