"""The settings of the monitoring stack: Prometheus, Alertmanager and Grafana. Values only."""

from dataclasses import dataclass

from gpucommons.base.address import parse_remote_address, parse_tcp_address
from gpucommons.config.option import option


@dataclass(frozen=True, slots=True)
class StackSettings:
    """Secrets are never values of keys: each is in a file, and a key names the file."""

    engine: str = option(
        "auto",
        "what runs the stack; auto: compose if a Docker engine answers, else local",
        choices=("auto", "compose", "local"),
    )
    data_dir: str = option(
        "", "directory of the stack; empty: /var/lib/gpucommons/stack, or the user's state directory"
    )
    node: str = option("", "name of this node in queries; empty: its host name")
    agent: str = option("127.0.0.1:9460", "HOST:PORT of this node's agent", check=parse_remote_address)
    agents_ca_file: str = option("", "CA certificate for scraping the agents over TLS; empty: no TLS")
    agents_username: str = option("", "user name for the agents (see web.config_file); empty: none")
    agents_password_file: str = option("", "file with the password of agents_username")
    run_agent: bool = option(False, "run this node's agent in the compose engine too")
    prometheus_listen: str = option("127.0.0.1:9090", "HOST:PORT of Prometheus", check=parse_tcp_address)
    alertmanager_listen: str = option("127.0.0.1:9093", "HOST:PORT of Alertmanager", check=parse_tcp_address)
    grafana_listen: str = option("127.0.0.1:3000", "HOST:PORT of Grafana (compose only)", check=parse_tcp_address)
    retention_days: int = option(7, "days for which Prometheus keeps samples", minimum=1)
    retention_gigabytes: int = option(20, "gigabytes of disk that Prometheus may use", minimum=1)
    scrape_interval_s: float = option(15.0, "seconds between two scrapes", minimum=0.1)
    ds01_interval_s: float = option(30.0, "seconds between two scrapes of the ds01 dialect", minimum=0.1)
    nodeexporter: bool = option(False, "scrape the nodeexporter dialect of every agent too, as the job nodeexporter")
    rules_dir: str = option("", "directory of additional rule files (*.yml); empty: none")
    targets_dir: str = option("", "directory of files (*.yml) that list other nodes; empty: targets/ in data_dir")
    remote_write_url: str = option("", "URL to which Prometheus also sends every sample; empty: none")
    remote_write_token_file: str = option("", "file with the bearer token for remote_write_url; empty: none")
    smtp_smarthost: str = option("", "HOST:PORT of the mail server; empty: no email", check=parse_remote_address)
    smtp_from: str = option("", "sender of the emails")
    smtp_username: str = option("", "user name for the mail server; empty: no login")
    smtp_password_file: str = option("", "file with the password of smtp_username")
    smtp_require_tls: bool = option(True, "refuse to send without STARTTLS")
    email_to: str = option("", "recipients of the emails, comma-separated")
    webhook_url_file: str = option("", "file with the URL to which alerts are posted; empty: none")
    webhook_token_file: str = option("", "file with the bearer token for the webhook; empty: none")
    slack_webhook_url_file: str = option(
        "", "file with the URL of an incoming webhook of Slack or Mattermost that gets the alerts; empty: none"
    )
    teams_webhook_url_file: str = option(
        "", "file with the URL of a Microsoft Teams workflow that gets the alerts; needs Alertmanager 0.28; empty: none"
    )
    grafana_admin_user: str = option("admin", "name of Grafana's administrator", aliases=("GRAFANA_ADMIN_USER",))
    grafana_root_url: str = option("", "URL of Grafana for its users; empty: none", aliases=("GRAFANA_ROOT_URL",))
