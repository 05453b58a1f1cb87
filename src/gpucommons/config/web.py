"""The settings of listeners: what they serve, to which peers, and what a viewer sees. Values only."""

from dataclasses import dataclass

from gpucommons.base.address import parse_address, parse_host_names
from gpucommons.config.api_address import AUTO, DEFAULT_LISTEN, check_api_socket
from gpucommons.config.option import join_bind_and_port, option


def _listener(dialect: str, port: int, bind_and_port: tuple[str, str] | None = None) -> str:
    """`bind_and_port` are the variables of the replaced program for its host and its port."""
    help = f"HOST:PORT that serves the {dialect} dialect alone, for scrapers that expect it on port {port}; empty: off"
    value: str = option(
        "",
        help,
        check=parse_address,
        aliases=bind_and_port or (),
        join_aliases=bind_and_port and (lambda given: join_bind_and_port(given, *bind_and_port, port)),
    )
    return value


@dataclass(frozen=True, slots=True)
class WebSettings:
    listen: str = option(
        DEFAULT_LISTEN,
        "HOST:PORT of the main listener, which serves the page, the API and every dialect; empty: off",
        check=parse_address,
    )
    socket: str = option(
        AUTO,
        "unix:PATH of a second main listener for local users, each of whom sees their own rows; the commands use it; "
        "auto: unix:/run/gpucommons/api.sock, for an agent that is not root $XDG_RUNTIME_DIR/gpucommons/api.sock, with "
        "a warning if that cannot be opened; empty: off",
        check=check_api_socket,
    )
    config_file: str = option("", "web.config.file of Prometheus: TLS, client certificates, passwords; empty: none")
    hosts: str = option(
        "",
        "further host names of this machine, comma-separated; the main listener refuses requests under other names "
        "(421), except localhost, the machine's host name and numeric addresses; * accepts every name",
        check=parse_host_names,
    )
    max_connections: int = option(512, "number of HTTP connections that may be open at once", minimum=1)
    max_unread_mb: int = option(
        64,
        "memory of responses that peers have not read yet, in MB (1,000,000 bytes); above it the connections that have "
        "been reading for longest are closed",
        minimum=1,
    )


@dataclass(frozen=True, slots=True)
class ListenersSettings:
    """Drop-in listeners: one dialect each, on the port that its scrapers already use."""

    gpucommons: str = _listener("gpucommons", 9460)
    node: str = _listener("node", 9100)
    nodeexporter: str = _listener("nodeexporter", 9100)
    nvshare: str = _listener("nvshare", 9402)
    xpushare: str = _listener("xpushare", 9402)
    dcgm: str = _listener("dcgm", 9400)
    nvidiasmi: str = _listener("nvidiasmi", 9835)
    ds01: str = _listener("ds01", 9101, bind_and_port=("DS01_EXPORTER_BIND", "DS01_EXPORTER_PORT"))
    vgpu: str = _listener("vgpu", 8080)


@dataclass(frozen=True, slots=True)
class PrivacySettings:
    show_owners: str = option(
        "auto",
        "names that a viewer sees. all: every owner's; own: only the viewer's own, and no metrics, "
        "unless the viewer is root, the agent's user or has a password; "
        "auto: all on loopback, own elsewhere, metrics open on TCP (table in docs/web.md)",
        choices=("auto", "all", "own"),
    )
