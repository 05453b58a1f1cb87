"""Every setting of the agent, one frozen section per table of the TOML file. Values only: reads nothing.

What is read, the vocabularies and the listeners are declared here; turns and parking in `scheduler`, accounts, leases
and idle holders in `accounts`, the monitoring stack in `stack`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpucommons.base.address import check_job_url, check_page_url, parse_address, parse_host_names
from gpucommons.config.accounts import (
    AccountsSettings,
    EventsSettings,
    IdleRuleSettings,
    IdleSettings,
    LeaseQuotaSettings,
    LeasesSettings,
    LedgerSettings,
    MailSettings,
    QuotaSettings,
    WebhookSettings,
)
from gpucommons.config.option import check_expression, check_url, join_bind_and_port, option
from gpucommons.config.runtime_directory import AUTO, DEFAULT_LISTEN, check_api_socket
from gpucommons.config.scheduler import ParkingSettings, SchedulerSettings, SharingQuotaSettings, check_class
from gpucommons.config.stack import StackSettings

# The settings of what is read: cadence, paths, owners, Kubernetes, DS01 and Alertmanager. Values only.


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
    kernel_log: str = option("/dev/kmsg", "device of the kernel log, which names the process of an XID error")
    docker_socket: str = option("/var/run/docker.sock", "socket of the Docker engine")
    podman_socket: str = option("/run/podman/podman.sock", "socket of the Podman service")
    kubelet_socket: str = option(
        "/var/lib/kubelet/pod-resources/kubelet.sock", "socket of the kubelet's PodResources service"
    )
    device_plugins: str = option("/var/lib/kubelet/device-plugins", "directory of the kubelet's device plugins")
    cdi: str = option("/etc/cdi,/var/run/cdi", "directories of CDI files, comma-separated")


@dataclass(frozen=True, slots=True)
class OwnersSettings:
    """The rules that find the owner of a process. The first rule that finds one decides."""

    order: str = option("site,pod,label,job,unit,user", "rules in the order in which they are tried, comma-separated")
    labels: str = option(
        "gpucommons.owner,ds01.user,aime.mlc.USER", "container labels that can name an owner, comma-separated"
    )
    rules_file: str = option("", "TOML file with regular expressions that find owners (rule: site); empty: none")


def _check_priority_classes(text: str) -> None:
    for part in text.split(","):
        name, separator, chosen = part.partition("=")
        if not separator or not name.strip():
            raise ValueError(f"invalid PriorityClass {part.strip()!r}: use NAME=CLASS, such as night=background")
        check_class(chosen.strip())


@dataclass(frozen=True, slots=True)
class KubernetesSettings:
    """Where the pods of this node are read, and what the agent offers and reports to Kubernetes.

    Empty values default to what Kubernetes sets in every pod.
    """

    api_url: str = option(
        "", "URL of the API server or of the kubelet (see source); empty: in-cluster", check=check_url
    )
    node_name: str = option("", "name of this node in the cluster; empty: the variable NODE_NAME")
    ca_file: str = option("", "certificate of the authority that signed the server's certificate; empty: in-cluster")
    token_file: str = option("", "file with the bearer token, read for each request; empty: in-cluster")
    source: str = option("api", "server that lists the pods", choices=("api", "kubelet"))
    pod_labels: str = option("", "pod labels to keep, comma-separated; empty: none")
    shares_per_gpu: int = option(
        0, "shares of each GPU that pods can request as gpucommons.io/gpu; 0: no device plugin", minimum=0, maximum=1000
    )
    nvshare_shares_per_gpu: int = option(
        0,
        "the same as nvshare.com/gpu, for pods made for nvshare; 0: none",
        minimum=0,
        maximum=1000,
        aliases=("NVSHARE_VIRTUAL_DEVICES",),
    )
    xpushare_shares_per_gpu: int = option(
        0,
        "the same as xpushare.com/gpu, for pods made for XPUShare; 0: none",
        minimum=0,
        maximum=1000,
        aliases=("XPUSHARE_VIRTUAL_DEVICES",),
    )
    priority_classes: str = option(
        "background=background",
        "classes of programs by the PriorityClass of their pod, as NAME=CLASS, comma-separated; empty: none",
        check=_check_priority_classes,
    )
    placement: str = option(
        "spread",
        "GPUs for the shares of a container: spread (each on the least shared GPU) or packed (all on one, the most "
        "shared that has room)",
        choices=("spread", "packed"),
    )
    device_injection: str = option(
        "auto",
        "how a container gets its GPUs: cdi, environment (NVIDIA_VISIBLE_DEVICES), mounts "
        "(/var/run/nvidia-container-devices); auto: cdi if a CDI file describes the GPU and the node's runtime is "
        "known to take it, else environment",
        choices=("auto", "cdi", "environment", "mounts"),
    )
    nvshare_library: bool = option(
        False,
        "mount nvshare's (for xpushare.com/gpu XPUShare's) library into containers and preload it, for its paging",
    )
    report_faults: str = option(
        "off",
        "GPU faults that the node gets: condition (node condition GPUProblem and events), taint (also the taint "
        "gpucommons.io/gpu-problem:NoSchedule), off",
        choices=("off", "condition", "taint"),
    )

    @property
    def offers_shares(self) -> bool:
        return bool(self.shares_per_gpu or self.nvshare_shares_per_gpu or self.xpushare_shares_per_gpu)


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
    node: str = option(
        "",
        "value of the label node (or host of the label instance) in the alerts of this node; only these and alerts "
        "without a node are shown; empty: the host name and the addresses of this machine",
    )


# The settings of metric vocabularies that replace other exporters. Values only.

# The values of KUBERNETES_VIRTUAL_GPUS that dcgm-exporter accepts as true and false.
_VIRTUAL_GPUS = {
    **dict.fromkeys(("1", "t", "true"), "per_pod"),
    **dict.fromkeys(("", "0", "f", "false"), "once"),
}


def _without_hostname(given: Mapping[str, str]) -> str:
    """DCGM_EXPORTER_NO_HOSTNAME is true or false; false leaves the default."""
    (text,) = given.values()
    chosen = _VIRTUAL_GPUS.get(text.strip().lower())
    return text if chosen is None else "none" if chosen == "per_pod" else "Hostname"


def _check_expressions(text: str) -> None:
    for part in text.split(","):
        check_expression(part.strip())


def _virtual_gpus(given: Mapping[str, str]) -> str:
    (text,) = given.values()
    return _VIRTUAL_GPUS.get(text.strip().lower(), text)


def _exclusion(default: str, help: str) -> str:
    value: str = option(default, f"regular expression of the {help} to leave out; empty: none", check=check_expression)
    return value


@dataclass(frozen=True, slots=True)
class NodeExporterSettings:
    """What the nodeexporter dialect reads and leaves out. Names and defaults are those of node_exporter's flags."""

    filesystem_mount_points_exclude: str = _exclusion(
        "^/(dev|proc|run/credentials/.+|sys|var/lib/docker/.+|var/lib/containers/storage/.+)($|/)", "mount points"
    )
    filesystem_fs_types_exclude: str = _exclusion(
        "^(autofs|binfmt_misc|bpf|cgroup2?|configfs|debugfs|devpts|devtmpfs|fusectl|hugetlbfs|iso9660|mqueue|nsfs|overlay"
        "|proc|procfs|pstore|rpc_pipefs|securityfs|selinuxfs|squashfs|sysfs|tracefs)$",
        "types of file systems",
    )
    diskstats_device_exclude: str = _exclusion(r"^(ram|loop|fd|(h|s|v|xv)d[a-z]|nvme\d+n\d+p)\d+$", "block devices")
    netdev_device_exclude: str = _exclusion("", "network devices")
    netclass_ignored_devices: str = _exclusion("", "network devices whose properties are")
    netstat_fields: str = option(
        "^(.*_(InErrors|InErrs)|Ip_Forwarding|Ip(6|Ext)_(InOctets|OutOctets)|Icmp6?_(InMsgs|OutMsgs)"
        "|TcpExt_(Listen.*|Syncookies.*|TCPSynRetrans|TCPTimeouts)"
        "|Tcp_(ActiveOpens|InSegs|OutSegs|OutRsts|PassiveOpens|RetransSegs|CurrEstab)"
        "|Udp6?_(InDatagrams|OutDatagrams|NoPorts|RcvbufErrors|SndbufErrors))$",
        "regular expression of the protocol counters to serve; empty: all",
        check=check_expression,
    )
    textfile_directory: str = option(
        "",
        "directory of *.prom files whose metrics the nodeexporter dialect serves, or a pattern that fits several; "
        "empty: none",
    )


@dataclass(frozen=True, slots=True)
class DcgmSettings:
    hostname_label: str = option(
        "Hostname",
        "name of the label with the node's name; released versions of dcgm-exporter use Hostname; none: no label",
        choices=("Hostname", "hostname", "both", "none"),
        aliases=("DCGM_EXPORTER_NO_HOSTNAME",),
        join_aliases=_without_hostname,
    )
    collectors: str = option(
        "",
        "CSV file of dcgm-exporter with the fields to serve, their types and help, and the fields that are labels; "
        "read at the start; empty: all fields that are available",
        aliases=("DCGM_EXPORTER_COLLECTORS",),
    )
    use_old_namespace: bool = option(
        False,
        "labels of dcgm-exporter 1.x: uuid, pod_name, pod_namespace and container_name",
        aliases=("DCGM_EXPORTER_USE_OLD_NAMESPACE",),
    )
    pod_uid: bool = option(
        False, "add the label pod_uid to the series of pods", aliases=("DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID",)
    )
    pod_labels: bool = option(
        False,
        "add the labels of pods to their series; other characters than letters, digits and _ become _",
        aliases=("DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS",),
    )
    pod_label_allowlist: str = option(
        "",
        "regular expressions, comma-separated, of the pod labels that pod_labels adds; empty: all",
        check=_check_expressions,
        aliases=("DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX",),
    )
    replace_blanks_in_model_name: bool = option(
        False,
        "write the label modelName with dashes in place of blanks",
        aliases=("DCGM_EXPORTER_REPLACE_BLANKS_IN_MODEL_NAME",),
    )
    shared: str = option(
        "once",
        "series of a GPU that several pods share: once without a pod, or once per pod with its vgpu number",
        choices=("once", "per_pod"),
        aliases=("KUBERNETES_VIRTUAL_GPUS",),
        join_aliases=_virtual_gpus,
    )
    hpc_job_mapping_dir: str = option(
        "",
        "directory of files that name the batch jobs of each GPU: file 0 for GPU 0, file 0.1 for its GPU instance 1, "
        "one job id per line; empty: none",
        aliases=("DCGM_HPC_JOB_MAPPING_DIR",),
    )
    xid_count_window_ms: int = option(
        300_000,
        "window of DCGM_EXP_XID_ERRORS_COUNT in milliseconds, at most an hour",
        minimum=1000,
        maximum=3_600_000,
        aliases=("DCGM_EXPORTER_XID_COUNT_WINDOW_SIZE",),
    )
    clock_events_count_window_ms: int = option(
        300_000,
        "window of DCGM_EXP_CLOCK_EVENTS_COUNT in milliseconds, at most an hour; it counts one sample every 30 s",
        minimum=1000,
        maximum=3_600_000,
        aliases=("DCGM_EXPORTER_CLOCK_EVENTS_COUNT_WINDOW_SIZE",),
    )


@dataclass(frozen=True, slots=True)
class SlurmSettings:
    job_directory: str = option(
        "",
        "directory in which `gpucommons slurm prolog` writes the jobs of this node: /run/gpucommons-slurm, unless the "
        "hooks were given another; empty: this node is not part of a Slurm cluster",
    )
    park_suspended: bool = option(
        True,
        "move the GPU memory of jobs that Slurm suspends to host memory, and back when they are resumed; needs "
        "scheduler.share_programs and scheduler.pause = driver",
    )
    pause_outside_allocation: bool = option(
        False,
        "pause processes of Slurm's jobs on GPUs that their job was not given, for as long as they are there; needs "
        "scheduler.share_programs = all",
    )


@dataclass(frozen=True, slots=True)
class VgpuSettings:
    namespace_label: bool = option(
        True, "add the label of the namespace, so that pods of the same name differ; false: labels of the original"
    )
    like_the_program: bool = option(
        False,
        "values and labels as k8s-vgpu-monitor's program has them, not as its README describes them: virtual GPUs "
        "numbered within the pod, utilization multiplied by the ratio, whole numbers, no namespace "
        "(docs/deploy.md lists the differences)",
    )
    allocation_file: str = option(
        "",
        "file with the number of virtual GPUs of each GPU; empty: gpu_allocation.txt in the working directory, if any",
    )


# The settings of listeners: what they serve, to which peers, and what a viewer sees. Values only.


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
        "names that a viewer sees. all: everything of every owner; own: only the viewer's own, and no metrics, "
        "unless the viewer is root, the agent's user or has a password; "
        "auto: on loopback and the Unix socket what ps and nvidia-smi show to every user, none elsewhere, metrics open "
        "on TCP (table in docs/web.md)",
        choices=("auto", "all", "own"),
    )


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
    job_url: str = option(
        "",
        "address of a job in your dashboards, for its report, with {job}, {from_ms} and {to_ms} (when it began and "
        "ended); empty: none",
        check=check_job_url,
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
    slurm: SlurmSettings = field(default_factory=SlurmSettings)
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
