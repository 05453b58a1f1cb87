"""The settings of what is read: cadence, paths, owners, Kubernetes, DS01 and Alertmanager. Values only."""

from dataclasses import dataclass

from gpucommons.config.option import check_url, option


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    interval_s: float = option(1.0, "seconds between two snapshots", minimum=0.1)
    processes_interval_s: float = option(5.0, "seconds between two reads of all processes", minimum=0.1)
    host_interval_s: float = option(
        5.0, "seconds between two reads of disks, network devices, sockets, file systems and sensors", minimum=0.1
    )


@dataclass(frozen=True, slots=True)
class ProcessesSettings:
    busiest: int = option(100, "processes with series of their own, by CPU time and by memory each", minimum=0)


@dataclass(frozen=True, slots=True)
class PathSettings:
    procfs: str = option("/proc", "directory of procfs; in a container, the host's /proc as mounted there")
    sysfs: str = option("/sys", "directory of sysfs; in a container, the host's /sys as mounted there")
    rootfs: str = option("/", "root of the host's file systems; in a container, the host's / as mounted there")
    cgroupfs: str = option("/sys/fs/cgroup", "directory of the control groups")
    docker_socket: str = option("/var/run/docker.sock", "socket of the Docker engine")
    podman_socket: str = option("/run/podman/podman.sock", "socket of the Podman service")
    kubelet_socket: str = option(
        "/var/lib/kubelet/pod-resources/kubelet.sock", "socket of the kubelet's PodResources service"
    )


@dataclass(frozen=True, slots=True)
class OwnersSettings:
    """The rules that find the owner of a process. The first rule that finds one decides."""

    order: str = option("site,pod,label,job,unit,user", "rules in the order in which they are tried, comma-separated")
    labels: str = option(
        "gpucommons.owner,ds01.user,aime.mlc.USER", "container labels that can name an owner, comma-separated"
    )
    rules_file: str = option("", "TOML file with regular expressions that find owners (rule: site); empty: none")


@dataclass(frozen=True, slots=True)
class KubernetesSettings:
    """Where the pods of this node are read. Empty values default to what Kubernetes sets in every pod."""

    api_url: str = option(
        "", "URL of the API server or of the kubelet (see source); empty: in-cluster", check=check_url
    )
    node_name: str = option("", "name of this node in the cluster; empty: the variable NODE_NAME")
    ca_file: str = option("", "certificate of the authority that signed the server's certificate; empty: in-cluster")
    token_file: str = option("", "file with the bearer token, read for each request; empty: in-cluster")
    source: str = option("api", "server that lists the pods", choices=("api", "kubelet"))
    pod_labels: str = option("", "pod labels to keep, comma-separated; empty: none")


@dataclass(frozen=True, slots=True)
class Ds01Settings:
    """Files of DS01, a server setup for research groups."""

    state_file: str = option("/var/lib/ds01/gpu-state.json", "state file of older DS01 installations")
    groups_directory: str = option(
        "/opt/ds01-infra/config/runtime/groups",
        "directory of DS01's groups, one file GROUP.members each; if it has any, they replace the system's groups in "
        "the accounts",
    )


@dataclass(frozen=True, slots=True)
class AlertsSettings:
    alertmanager_url: str = option("", "URL of an Alertmanager, for alerts on the page; empty: none", check=check_url)
