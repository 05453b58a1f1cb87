"""The settings of the monitoring stack: Prometheus, Alertmanager and Grafana beside the agent. Values only."""

from dataclasses import dataclass

from gpucommons.config.option import check_address, option


@dataclass(frozen=True, slots=True)
class StackSettings:
    """No secret is a key: a secret is a file, and a key names the file."""

    engine: str = option(
        "auto",
        "what runs the stack; auto: compose where a Docker engine answers, else local",
        choices=("auto", "compose", "local"),
    )
    data_dir: str = option("", "where the stack lives; empty: /var/lib/gpucommons/stack, or the user's state directory")
    node: str = option("", "name of this node in queries; empty: its host name")
    agent: str = option("127.0.0.1:9460", "HOST:PORT of this node's agent", check=check_address)
    agents_ca_file: str = option("", "authority that signed the agents' certificates; set: they are scraped over TLS")
    agents_username: str = option("", "user that the agents ask for (their web.config.file); empty: none")
    agents_password_file: str = option("", "file that holds that user's password")
    run_agent: bool = option(False, "let the compose engine run this node's agent too")
    prometheus_listen: str = option("127.0.0.1:9090", "HOST:PORT of Prometheus", check=check_address)
    alertmanager_listen: str = option("127.0.0.1:9093", "HOST:PORT of Alertmanager", check=check_address)
    grafana_listen: str = option("127.0.0.1:3000", "HOST:PORT of Grafana (compose only)", check=check_address)
    retention_days: int = option(7, "days that Prometheus keeps", minimum=1)
    retention_gigabytes: int = option(20, "the most disk that Prometheus keeps, whatever the days", minimum=1)
    scrape_interval_s: float = option(15.0, "seconds between two scrapes", minimum=0.1)
    ds01_interval_s: float = option(30.0, "seconds between two scrapes of the ds01 dialect", minimum=0.1)
    nodeexporter: bool = option(False, "scrape the nodeexporter dialect of every agent too, as the job nodeexporter")
    rules_dir: str = option("", "directory of further rule files (*.yml)")
    targets_dir: str = option("", "directory of files (*.yml) that list further nodes; empty: targets/ in data_dir")
    remote_write_url: str = option("", "where Prometheus sends every sample too, such as VictoriaMetrics")
    remote_write_token_file: str = option("", "file that holds the bearer token for remote_write_url")
    smtp_smarthost: str = option("", "HOST:PORT of the mail server; empty: no email", check=check_address)
    smtp_from: str = option("", "sender of the emails")
    smtp_username: str = option("", "user at the mail server; empty: no login")
    smtp_password_file: str = option("", "file that holds the password at the mail server")
    smtp_require_tls: bool = option(True, "refuse to send without STARTTLS")
    email_to: str = option("", "who gets the emails, separated by commas")
    webhook_url_file: str = option("", "file that holds the URL to which alerts are posted")
    webhook_token_file: str = option("", "file that holds the bearer token for the webhook")
    grafana_admin_user: str = option("admin", "name of Grafana's administrator", aliases=("GRAFANA_ADMIN_USER",))
    grafana_root_url: str = option("", "address under which people reach Grafana", aliases=("GRAFANA_ROOT_URL",))
