"""Every setting of the agent, one frozen section per table of the TOML file. Values only: reads nothing."""

from dataclasses import dataclass, field

from gpucommons.config.option import check_address, option
from gpucommons.config.stack import StackSettings


def _listener(dialect: str, port: int) -> str:
    help = f"HOST:PORT of a listener that serves the {dialect} dialect alone, as its users expect on {port}"
    value: str = option("", help, check=check_address)
    return value


@dataclass(frozen=True, slots=True)
class WebSettings:
    listen: str = option(
        "127.0.0.1:9460", "HOST:PORT of the main listener: page, API, every dialect", check=check_address
    )
    config_file: str = option("", "file in the format of Prometheus's exporters: TLS, client certificates, passwords")
    max_connections: int = option(512, "HTTP connections that may be open at once", minimum=1)


@dataclass(frozen=True, slots=True)
class ListenersSettings:
    """Drop-in listeners: one dialect each, on the port that its users already scrape. Empty: closed."""

    gpucommons: str = _listener("gpucommons", 9460)
    node: str = _listener("node", 9100)


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    interval_s: float = option(1.0, "seconds between two snapshots", minimum=0.1)
    processes_interval_s: float = option(5.0, "seconds between two looks at all processes", minimum=0.1)


@dataclass(frozen=True, slots=True)
class ProcessesSettings:
    busiest: int = option(100, "processes that get series of their own, by CPU time and by memory each", minimum=0)


@dataclass(frozen=True, slots=True)
class PathSettings:
    procfs: str = option("/proc", "where /proc is; in a container, where the host's is mounted")
    docker_socket: str = option("/var/run/docker.sock", "socket of the Docker engine")
    podman_socket: str = option("/run/podman/podman.sock", "socket of Podman's service")
    kubelet_socket: str = option(
        "/var/lib/kubelet/pod-resources/kubelet.sock", "socket of the kubelet's PodResources service"
    )


@dataclass(frozen=True, slots=True)
class OwnersSettings:
    """Who owns a process: the first rule that answers."""

    order: str = option("site,pod,label,job,unit,user", "rules in the order in which they are tried, as a comma list")
    labels: str = option(
        "gpucommons.owner,ds01.user,aime.mlc.USER", "container labels that may name an owner, a comma list"
    )
    rules_file: str = option("", "TOML file with the site's own rules (regular expressions)")


@dataclass(frozen=True, slots=True)
class VgpuSettings:
    allocation_file: str = option(
        "",
        "file that says into how many virtual GPUs each GPU is split; "
        "unset: gpu_allocation.txt of the working directory, if it is there",
    )


@dataclass(frozen=True, slots=True)
class LogSettings:
    format: str = option("human", "lines for people, or one JSON object a line", choices=("human", "json"))
    level: str = option("info", "the least that is logged", choices=("debug", "info", "warning", "error"))


@dataclass(frozen=True, slots=True)
class Settings:
    web: WebSettings = field(default_factory=WebSettings)
    listeners: ListenersSettings = field(default_factory=ListenersSettings)
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    processes: ProcessesSettings = field(default_factory=ProcessesSettings)
    path: PathSettings = field(default_factory=PathSettings)
    owners: OwnersSettings = field(default_factory=OwnersSettings)
    vgpu: VgpuSettings = field(default_factory=VgpuSettings)
    log: LogSettings = field(default_factory=LogSettings)
    stack: StackSettings = field(default_factory=StackSettings)
