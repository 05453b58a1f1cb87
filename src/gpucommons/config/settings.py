"""Every setting of the agent, one frozen section per table of the TOML file. Values only: reads nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpucommons.config.option import (
    check_address,
    check_address_or_port,
    check_expression,
    check_unix_address,
    check_url,
    join_bind_and_port,
    nvshare_aliases,
    option,
)
from gpucommons.config.stack import StackSettings

# What dcgm-exporter takes for true and false in KUBERNETES_VIRTUAL_GPUS.
_VIRTUAL_GPUS = {
    **dict.fromkeys(("1", "t", "true"), "per_pod"),
    **dict.fromkeys(("", "0", "f", "false"), "once"),
}


def _virtual_gpus(given: Mapping[str, str]) -> str:
    (text,) = given.values()
    return _VIRTUAL_GPUS.get(text.strip().lower(), text)


def _listener(dialect: str, port: int, bind_and_port: tuple[str, str] | None = None) -> str:
    """`bind_and_port` are the variables of the program that the listener replaces: its host and its port."""
    help = f"HOST:PORT of a listener that serves the {dialect} dialect alone, as its users expect on {port}"
    value: str = option(
        "",
        help,
        check=check_address,
        aliases=bind_and_port or (),
        join_aliases=bind_and_port and (lambda given: join_bind_and_port(given, *bind_and_port, port)),
    )
    return value


@dataclass(frozen=True, slots=True)
class WebSettings:
    listen: str = option(
        "127.0.0.1:9460", "HOST:PORT of the main listener: page, API, every dialect", check=check_address
    )
    socket: str = option(
        "",
        "unix:PATH of a second main listener, for the people of this machine: each sees their own rows",
        check=check_unix_address,
    )
    config_file: str = option("", "file in the format of Prometheus's exporters: TLS, client certificates, passwords")
    max_connections: int = option(512, "HTTP connections that may be open at once", minimum=1)


@dataclass(frozen=True, slots=True)
class ListenersSettings:
    """Drop-in listeners: one dialect each, on the port that its users already scrape. Empty: closed."""

    gpucommons: str = _listener("gpucommons", 9460)
    node: str = _listener("node", 9100)
    nodeexporter: str = _listener("nodeexporter", 9100)
    nvshare: str = _listener("nvshare", 9402)
    xpushare: str = _listener("xpushare", 9402)
    dcgm: str = _listener("dcgm", 9400)
    ds01: str = _listener("ds01", 9101, bind_and_port=("DS01_EXPORTER_BIND", "DS01_EXPORTER_PORT"))
    vgpu: str = _listener("vgpu", 8080)


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    interval_s: float = option(1.0, "seconds between two snapshots", minimum=0.1)
    processes_interval_s: float = option(5.0, "seconds between two looks at all processes", minimum=0.1)
    host_interval_s: float = option(
        5.0, "seconds between two reads of disks, network devices, sockets, file systems and sensors", minimum=0.1
    )


@dataclass(frozen=True, slots=True)
class ProcessesSettings:
    busiest: int = option(100, "processes that get series of their own, by CPU time and by memory each", minimum=0)


@dataclass(frozen=True, slots=True)
class PathSettings:
    procfs: str = option("/proc", "where /proc is; in a container, where the host's is mounted")
    sysfs: str = option("/sys", "where /sys is; in a container, where the host's is mounted")
    rootfs: str = option(
        "/", "where the host's root is; in a container, where it is mounted: file systems are below it"
    )
    cgroupfs: str = option("/sys/fs/cgroup", "where the control groups are")
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
class KubernetesSettings:
    """How this node's pods are known; unset, what Kubernetes tells each pod of its API server is used."""

    api_url: str = option("", "API server, or the kubelet (with source = kubelet)", check=check_url)
    node_name: str = option("", "this node's name in the cluster; unset: NODE_NAME")
    ca_file: str = option("", "certificate of the authority that signed the server's")
    token_file: str = option("", "file with the bearer token; read anew for each request")
    source: str = option("api", "who is asked for the pods", choices=("api", "kubelet"))
    pod_labels: str = option("", "labels of pods that may be kept, a comma list; unset: none")


def _excluded(default: str, help: str) -> str:
    value: str = option(default, f"regular expression of {help} to leave out; empty: none", check=check_expression)
    return value


@dataclass(frozen=True, slots=True)
class NodeExporterSettings:
    """What the nodeexporter dialect leaves out. Names and defaults are those of node_exporter's own flags."""

    filesystem_mount_points_exclude: str = _excluded(
        "^/(dev|proc|run/credentials/.+|sys|var/lib/docker/.+|var/lib/containers/storage/.+)($|/)", "mount points"
    )
    filesystem_fs_types_exclude: str = _excluded(
        "^(autofs|binfmt_misc|bpf|cgroup2?|configfs|debugfs|devpts|devtmpfs|fusectl|hugetlbfs|iso9660|mqueue|nsfs|overlay"
        "|proc|procfs|pstore|rpc_pipefs|securityfs|selinuxfs|squashfs|sysfs|tracefs)$",
        "types of file systems",
    )
    diskstats_device_exclude: str = _excluded(r"^(ram|loop|fd|(h|s|v|xv)d[a-z]|nvme\d+n\d+p)\d+$", "block devices")
    netdev_device_exclude: str = _excluded("", "network devices")


@dataclass(frozen=True, slots=True)
class DcgmSettings:
    hostname_label: str = option(
        "Hostname",
        "label that holds the node's name: Hostname, as released versions of dcgm-exporter have it, hostname, or both",
        choices=("Hostname", "hostname", "both"),
    )
    shared: str = option(
        "once",
        "series of a GPU that several pods share: one that names no pod, or one per pod with its vgpu number",
        choices=("once", "per_pod"),
        aliases=("KUBERNETES_VIRTUAL_GPUS",),
        join_aliases=_virtual_gpus,
    )
    hpc_job_mapping_dir: str = option(
        "",
        "directory of files that name the batch jobs of each GPU: a file 0 for GPU 0, 0.1 for its GPU instance 1, "
        "one job id a line; unset: none",
        aliases=("DCGM_HPC_JOB_MAPPING_DIR",),
    )
    xid_count_window_ms: int = option(
        300_000,
        "milliseconds in which DCGM_EXP_XID_ERRORS_COUNT counts, at most an hour",
        minimum=1000,
        maximum=3_600_000,
        aliases=("DCGM_EXPORTER_XID_COUNT_WINDOW_SIZE",),
    )
    clock_events_count_window_ms: int = option(
        300_000,
        "milliseconds in which DCGM_EXP_CLOCK_EVENTS_COUNT counts samples, one every 30 s, at most an hour",
        minimum=1000,
        maximum=3_600_000,
        aliases=("DCGM_EXPORTER_CLOCK_EVENTS_COUNT_WINDOW_SIZE",),
    )


@dataclass(frozen=True, slots=True)
class VgpuSettings:
    namespace_label: bool = option(True, "tell pods of one name in two namespaces apart; off: as the original")
    allocation_file: str = option(
        "",
        "file that says into how many virtual GPUs each GPU is split; "
        "unset: gpu_allocation.txt of the working directory, if it is there",
    )


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """Turns for the clients of nvshare and XPUShare. Their variables keep their meaning and units."""

    enabled: bool = option(False, "serve clients of nvshare and XPUShare")
    share_programs: str = option(
        "off",
        "plain CUDA programs that take fair turns by being paused and resumed. off: none; "
        "own: those of the agent's own user; all: those of every user, for which the pauser must run as root",
        choices=("off", "own", "all"),
    )
    socket: str = option("/var/run/nvshare/scheduler.sock", "socket that libnvshare.so and nvsharectl look for")
    xpushare_socket: str = option(
        "/var/run/xpushare/scheduler.sock",
        "second socket of the same scheduler, for libxpushare.so and xpusharectl; empty: none; "
        "left out with a warning where the agent has no right to create it",
    )
    admin_group: str = option("", "group whose members may switch it and set limits, beside root and our own user")
    debug: bool = option(False, "log every client that comes and goes", aliases=nvshare_aliases("DEBUG"))
    mode: str = option(
        "auto",
        "one at a time, together while memory fits, or by measured demand",
        choices=("auto", "serial", "concurrent"),
        aliases=nvshare_aliases("SCHEDULING_MODE"),
    )
    corun_limit: float = option(1.5, "auto: demands that may sum up to this run together", minimum=0)
    turn_quantum_s: float = option(1.0, "auto: length of a turn where nothing has to be swapped", minimum=0.05)
    max_bypass_s: float = option(0.0, "how long a big waiter may be passed by smaller ones; 0: two quanta", minimum=0)
    switch_time_mode: str = option(
        "auto",
        "quantum by the memory that a switch moves, or fixed",
        choices=("auto", "fixed"),
        aliases=nvshare_aliases("SWITCH_TIME_MODE"),
    )
    switch_time_fixed_s: float = option(
        60.0, "quantum in mode fixed", minimum=0.1, aliases=nvshare_aliases("SWITCH_TIME_FIXED")
    )
    switch_time_multiplier: float = option(
        5.0, "quantum in mode auto, seconds per GiB", minimum=0, aliases=nvshare_aliases("SWITCH_TIME_MULTIPLIER")
    )
    memory_reserve_percent: float = option(
        10.0,
        "part of a GPU's memory that is never promised",
        minimum=0,
        maximum=90,
        aliases=nvshare_aliases("MEMORY_RESERVE_PERCENT"),
    )
    default_gpu_memory_gb: float = option(
        16.0, "GiB of a GPU where NVML cannot tell", minimum=0.001, aliases=nvshare_aliases("DEFAULT_GPU_MEMORY_GB")
    )
    quota_sample_interval_ms: float = option(
        50.0, "how finely a core quota is watched", minimum=1, aliases=nvshare_aliases("QUOTA_SAMPLE_INTERVAL_MS")
    )
    compute_window_ms: float = option(
        2000.0, "window of a core quota", minimum=100, aliases=nvshare_aliases("COMPUTE_WINDOW_MS")
    )
    quota_carryover_percent: float = option(
        25.0,
        "part of an unused window that may be saved up",
        minimum=0,
        maximum=100,
        aliases=nvshare_aliases("QUOTA_CARRYOVER_PERCENT"),
    )
    drop_tail_billing_percent: float = option(
        100.0,
        "part of the time between DROP_LOCK and the release that is billed; the original's 70 undercharges the slow",
        minimum=0,
        maximum=100,
        aliases=nvshare_aliases("DROP_TAIL_BILLING_PERCENT"),
    )
    work_conserving: bool = option(False, "lend idle share beyond a core quota while nobody else wants it")
    revoke_after_s: float = option(30.0, "a client that ignores DROP_LOCK for this long loses its turn", minimum=1)
    fence: str = option("none", "what befalls it then", choices=("none", "disconnect"))
    metrics_enable: bool = option(
        False, "open the nvshare drop-in listener on metrics_addr", aliases=("NVSHARE_METRICS_ENABLE",)
    )
    metrics_addr: str = option(
        "0.0.0.0:9402", "its HOST:PORT, or a port", check=check_address_or_port, aliases=("NVSHARE_METRICS_ADDR",)
    )
    xpushare_metrics_enable: bool = option(
        False, "open the xpushare drop-in listener on xpushare_metrics_addr", aliases=("XPUSHARE_METRICS_ENABLE",)
    )
    xpushare_metrics_addr: str = option(
        "0.0.0.0:9402",
        "its HOST:PORT, or a port; another one than metrics_addr where both are open",
        check=check_address_or_port,
        aliases=("XPUSHARE_METRICS_ADDR",),
    )
    metrics_nvml_interval_ms: float = option(
        1000.0, "how often the GPUs are read, at most", minimum=100, aliases=nvshare_aliases("METRICS_NVML_INTERVAL_MS")
    )
    metrics_debug_labels: bool = option(
        True,
        "client_id and host_pid on every series; off: a pod's clients on one GPU are one series",
        aliases=nvshare_aliases("METRICS_DEBUG_LABELS"),
    )
    metrics_stale_ttl_s: float = option(
        0.0,
        "keep the last values of a client that left for this long",
        minimum=0,
        aliases=nvshare_aliases("METRICS_STALE_TTL_SEC"),
    )


@dataclass(frozen=True, slots=True)
class SharingQuotaSettings:
    """One line for each rule, such as students = { namespace = "course-*", memory = "8Gi", core = 25 }.

    A rule matches a program if all of its patterns do. Of several rules that match, the first that sets a value counts.
    """

    pod: str = option("*", "shell pattern of the pod's name")
    namespace: str = option("*", "shell pattern of its namespace")
    uid: str = option("*", "shell pattern of the user's number")
    user: str = option("*", "shell pattern of the user's name")
    group: str = option("*", "shell pattern of a group that the user is in")
    container: str = option("*", "shell pattern of the container's name or id")
    job: str = option("*", "shell pattern of the Slurm job's number")
    unit: str = option("*", "shell pattern of the systemd unit")
    command: str = option(
        "*", "shell pattern of the command, such as train.py, or of the whole command line; a program can change both"
    )
    memory: str = option("", "the most memory that such a client may have, such as 8Gi")
    core: int = option(0, "percent of the GPU's time that such a client may have; 0: all", minimum=0, maximum=100)
    share: bool = option(True, "false: such programs are never paused, whatever other rules say")


@dataclass(frozen=True, slots=True)
class LedgerSettings:
    """The accounts. Unset, files lie in /var/lib/gpucommons, or for a user in ~/.local/state/gpucommons."""

    enabled: bool = option(True, "keep accounts of who held and used which GPU, while there is one")
    file: str = option("", "the ledger; unset: ledger.sqlite in the state directory")
    flush_s: float = option(10.0, "seconds between two writes; a crash loses no more", minimum=1)
    keep_minutes_d: float = option(2.0, "days that usage is kept by the minute", minimum=1)
    keep_hours_d: float = option(400.0, "days that it is kept by the hour", minimum=2)
    keep_days_d: float = option(1830.0, "days that it is kept by the day", minimum=31)
    active_ratio: float = option(0.05, "part of what it holds that a workload must use to count as active", minimum=0)


@dataclass(frozen=True, slots=True)
class EventsSettings:
    file: str = option("/var/log/ds01/events.jsonl", "DS01's event log, which is followed if it is there")
    own_file: str = option("", "our own event log; unset: events.jsonl in the state directory")


@dataclass(frozen=True, slots=True)
class Ds01Settings:
    state_file: str = option("/var/lib/ds01/gpu-state.json", "the state file of older DS01 installs")
    groups_directory: str = option(
        "/opt/ds01-infra/config/runtime/groups",
        "DS01's groups, one file GROUP.members each; if there are any, users are billed under these groups and not "
        "under the system's",
    )


@dataclass(frozen=True, slots=True)
class QuotaSettings:
    """One line for each user, such as alice = { gpu_equivalents = 2 }."""

    gpu_equivalents: float = option(0.0, "the most GPU-equivalents that the user may hold", minimum=0)


@dataclass(frozen=True, slots=True)
class PrivacySettings:
    show_owners: str = option(
        "auto",
        "names that a peer sees. all: every owner's; own: only the peer's own, and no metrics, "
        "unless it is root, the agent's user or has a password; "
        "auto: all on loopback, own elsewhere, metrics open on TCP (table in docs/web.md)",
        choices=("auto", "all", "own"),
    )


@dataclass(frozen=True, slots=True)
class HistorySettings:
    prometheus_url: str = option(
        "", "Prometheus that scrapes this agent, for history beyond the 24 h in memory", check=check_url
    )
    prometheus_selector: str = option("", 'label matchers that pick this node there, such as instance="gpu1:9460"')


@dataclass(frozen=True, slots=True)
class AlertsSettings:
    alertmanager_url: str = option("", "Alertmanager whose firing alerts the page shows", check=check_url)


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
    kubernetes: KubernetesSettings = field(default_factory=KubernetesSettings)
    nodeexporter: NodeExporterSettings = field(default_factory=NodeExporterSettings)
    dcgm: DcgmSettings = field(default_factory=DcgmSettings)
    vgpu: VgpuSettings = field(default_factory=VgpuSettings)
    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
    sharing_quotas: Mapping[str, SharingQuotaSettings] = field(default_factory=dict)
    ledger: LedgerSettings = field(default_factory=LedgerSettings)
    events: EventsSettings = field(default_factory=EventsSettings)
    ds01: Ds01Settings = field(default_factory=Ds01Settings)
    quotas: Mapping[str, QuotaSettings] = field(default_factory=dict)
    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    history: HistorySettings = field(default_factory=HistorySettings)
    alerts: AlertsSettings = field(default_factory=AlertsSettings)
    log: LogSettings = field(default_factory=LogSettings)
    stack: StackSettings = field(default_factory=StackSettings)
