"""What the agent serves, by its settings: the dialects, the API, and the listeners."""

import logging
from collections.abc import Callable
from pathlib import Path

from gpucommons import __version__
from gpucommons.agent.accounts import Accounts
from gpucommons.agent.setting_rules import check_ports
from gpucommons.agent.sharing.settings import metrics_listeners
from gpucommons.base.address import parse_host_names
from gpucommons.base.processes import hides_processes
from gpucommons.config.runtime_directory import AUTO, served_socket
from gpucommons.config.settings import DcgmSettings, FleetSettings, HistorySettings, Settings
from gpucommons.faces.dialects.all import DIALECTS, dialects
from gpucommons.faces.dialects.dcgm import CATALOGUE as DCGM_CATALOGUE
from gpucommons.faces.dialects.dcgm.collectors import Shape, parse_collectors
from gpucommons.faces.dialects.dcgm.labels import DcgmOptions
from gpucommons.faces.dialects.dialect import Dialect
from gpucommons.faces.exposition.exposition import Exposition
from gpucommons.faces.fleet.reader import FleetReader, FleetSource
from gpucommons.faces.history.history import History
from gpucommons.faces.history.prometheus import Prometheus
from gpucommons.faces.web.http.connections import ConnectionLimits
from gpucommons.faces.web.http.server import WebServer
from gpucommons.faces.web.routes.api import Api
from gpucommons.model.snapshot import Snapshot

log = logging.getLogger(__name__)


def dialects_of(settings: Settings) -> tuple[Dialect, ...]:
    return dialects(
        dcgm=_dcgm_options(settings.dcgm),
        dcgm_shape=_dcgm_shape(settings.dcgm),
        pod_namespace=settings.vgpu.namespace_label,
        like_vgpu_monitor=settings.vgpu.like_the_program,
    )


def api_of(settings: Settings, latest: Callable[[], Snapshot | None], accounts: Accounts) -> Api:
    has_ledger = settings.ledger.enabled
    return Api(
        latest,
        History(settings.sampling.interval_s),
        __version__,
        _prometheus(settings.history),
        accounts.report if has_ledger else None,
        accounts.job if has_ledger else None,
        _fleet(settings.fleet),
    )


def web_server(settings: Settings, exposition: Exposition, api: Api) -> WebServer:
    """The main listener, the API's socket, and a listener for each drop-in dialect. Raises ConfigError."""
    web = settings.web
    return WebServer(
        exposition,
        [*_main_listeners(settings), *_drop_in_listeners(settings)],
        optional_socket=served_socket(AUTO) if web.socket == AUTO else "",
        web_config=Path(web.config_file) if web.config_file else None,
        hosts=parse_host_names(web.hosts),
        limits=ConnectionLimits(connections=web.max_connections, unread_bytes=web.max_unread_mb * 1_000_000),
        api=api,
        show_owners=settings.privacy.show_owners,
        hides_processes=hides_processes(Path(settings.path.procfs)),
        snapshot_stale_after_s=max(10.0, 5 * settings.sampling.interval_s),
    )


def lacks_api_socket(settings: Settings) -> bool:
    """Whether the API should have a socket, and there is no directory for it."""
    return settings.web.socket == AUTO and not served_socket(AUTO)


def _main_listeners(settings: Settings) -> list[tuple[str, None]]:
    addresses = (settings.web.listen, settings.web.socket)
    return [(address, None) for address in addresses if address and address != AUTO]


def _drop_in_listeners(settings: Settings) -> list[tuple[str, str]]:
    addresses = ((dialect.name, getattr(settings.listeners, dialect.name)) for dialect in DIALECTS)
    listeners = [(address, name) for name, address in addresses if address]
    listeners += metrics_listeners(settings.scheduler)
    check_ports(listeners)
    return listeners


def _prometheus(settings: HistorySettings) -> Prometheus | None:
    return Prometheus(settings.prometheus_url, settings.prometheus_selector) if settings.prometheus_url else None


def _fleet(settings: FleetSettings) -> FleetReader | None:
    source = FleetSource(settings.prometheus_url, settings.prometheus_selector, settings.page_url)
    return FleetReader(source) if settings.prometheus_url else None


def _dcgm_options(settings: DcgmSettings) -> DcgmOptions:
    return DcgmOptions(
        settings.hostname_label,
        settings.shared,
        settings.xid_count_window_ms,
        settings.clock_events_count_window_ms,
        settings.pod_uid,
        settings.replace_blanks_in_model_name,
    )


def _dcgm_shape(settings: DcgmSettings) -> Shape:
    """A list that cannot be read is not an error: images of dcgm-exporter set its path, and this agent may lack it."""
    collectors = None
    if settings.collectors:
        try:
            text = Path(settings.collectors).read_text(errors="replace")
        except OSError as error:
            log.warning("dcgm: %s: %s; all fields are served", settings.collectors, error.strerror)
        else:
            collectors, problems = parse_collectors(text, (metric.name for metric in DCGM_CATALOGUE))
            for problem in problems:
                log.warning("dcgm: %s: %s", settings.collectors, problem)
    return Shape(collectors, settings.use_old_namespace, settings.pod_labels)
