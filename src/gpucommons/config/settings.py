"""Every setting of the agent, one frozen section per table of the TOML file. Values only: reads nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpucommons.base.address import parse_address, parse_address_or_port, parse_host_names, parse_remote_address
from gpucommons.base.page_address import check_page_url
from gpucommons.config.api_address import AUTO, DEFAULT_LISTEN, check_api_socket
from gpucommons.config.option import (
    check_expression,
    check_mail_address,
    check_mail_pattern,
    check_url,
    join_bind_and_port,
    nvshare_aliases,
    option,
)
from gpucommons.config.prices import check_currency, parse_prices, price_text
from gpucommons.config.stack import StackSettings

# The values of KUBERNETES_VIRTUAL_GPUS that dcgm-exporter accepts as true and false.
_VIRTUAL_GPUS = {
    **dict.fromkeys(("1", "t", "true"), "per_pod"),
    **dict.fromkeys(("", "0", "f", "false"), "once"),
}


def _virtual_gpus(given: Mapping[str, str]) -> str:
    (text,) = given.values()
    return _VIRTUAL_GPUS.get(text.strip().lower(), text)


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
        "further host names of this machine, comma-separated; requests under other names are refused (421), except "
        "localhost, the machine's host name and numeric addresses; * accepts every name",
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
    ds01: str = _listener("ds01", 9101, bind_and_port=("DS01_EXPORTER_BIND", "DS01_EXPORTER_PORT"))
    vgpu: str = _listener("vgpu", 8080)


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


def _excluded(default: str, help: str) -> str:
    value: str = option(default, f"regular expression of the {help} to leave out; empty: none", check=check_expression)
    return value


@dataclass(frozen=True, slots=True)
class NodeExporterSettings:
    """What the nodeexporter dialect leaves out. Names and defaults are those of node_exporter's flags."""

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
        "name of the label with the node's name; released versions of dcgm-exporter use Hostname",
        choices=("Hostname", "hostname", "both"),
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
class VgpuSettings:
    namespace_label: bool = option(
        True, "add the label of the namespace, so that pods of the same name differ; false: labels of the original"
    )
    allocation_file: str = option(
        "",
        "file with the number of virtual GPUs of each GPU; empty: gpu_allocation.txt in the working directory, if any",
    )


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """Turns for plain programs and for clients of nvshare and XPUShare. nvshare's variables keep their meaning."""

    enabled: bool = option(False, "run the scheduler for the clients of nvshare and XPUShare")
    socket: str = option("/var/run/nvshare/scheduler.sock", "socket for libnvshare.so and nvsharectl")
    xpushare_socket: str = option(
        "/var/run/xpushare/scheduler.sock",
        "second socket of the same scheduler, for libxpushare.so and xpusharectl; empty: none; "
        "a warning is logged if the agent may not create it",
    )
    admin_group: str = option("", "group that may switch the scheduler and set limits, like root; empty: none")
    max_connections_per_uid: int = option(
        512, "connections that one user may have at once; root outside of containers has no limit", minimum=1
    )
    max_connections_per_container: int = option(
        256, "connections that the programs of one container may have at once", minimum=1
    )
    debug: bool = option(False, "log every client that connects and disconnects", aliases=nvshare_aliases("DEBUG"))
    mode: str = option(
        "auto",
        "serial: one client at a time; concurrent: together if their memory fits; auto: by measured demand",
        choices=("auto", "serial", "concurrent"),
        aliases=nvshare_aliases("SCHEDULING_MODE"),
    )
    corun_gain_percent: float = option(
        3.0,
        "mode auto: least gain in percent over turns for which clients run together; less is within the noise",
        minimum=0,
        maximum=100,
    )
    turn_quantum_s: float = option(0.25, "mode auto: seconds of a turn if no memory has to be swapped", minimum=0.05)
    fair_between: str = option(
        "owners",
        "owners: all clients of one user or container together get what one client of another gets; "
        "clients: every client gets the same",
        choices=("owners", "clients"),
    )
    share_programs: str = option(
        "off",
        "whose plain programs take turns, paused and resumed by the driver: none (off), those of the agent's own user "
        "(own), or all; needs mode auto",
        choices=("off", "own", "all"),
    )
    pause: str = option(
        "driver",
        "how plain programs are paused: by the driver, from r570 on; freeze: by the cgroup freezer or SIGSTOP, "
        "which also stops their CPU work, for older drivers; a pauser that runs as a service has --backend instead",
        choices=("driver", "freeze"),
    )
    max_pause_s: float = option(
        10.0,
        "longest time in seconds for which a plain program is paused; a pauser that runs as a service also has a limit "
        "of its own, --max-pause-s",
        minimum=0.1,
        maximum=3600,
    )
    pauser_socket: str = option(
        "",
        "socket of a pauser that runs as a service; empty: /run/gpucommons-pauser/pauser.sock if the agent is not root "
        "and share_programs is all, or off with leases.enforce = pause; else the agent starts a pauser of its own",
    )
    max_bypass_s: float = option(0.0, "seconds that smaller clients may delay a larger one; 0: two quanta", minimum=0)
    switch_time_mode: str = option(
        "auto",
        "length of a turn: by the memory that a switch moves (auto), or fixed",
        choices=("auto", "fixed"),
        aliases=nvshare_aliases("SWITCH_TIME_MODE"),
    )
    switch_time_fixed_s: float = option(
        60.0,
        "seconds of a turn with switch_time_mode = fixed",
        minimum=0.1,
        aliases=nvshare_aliases("SWITCH_TIME_FIXED"),
    )
    switch_time_multiplier: float = option(
        5.0,
        "seconds of a turn per GiB with switch_time_mode = auto",
        minimum=0,
        aliases=nvshare_aliases("SWITCH_TIME_MULTIPLIER"),
    )
    memory_reserve_percent: float = option(
        10.0,
        "percent of a GPU's memory that is never given to clients",
        minimum=0,
        maximum=90,
        aliases=nvshare_aliases("MEMORY_RESERVE_PERCENT"),
    )
    default_gpu_memory_gb: float = option(
        16.0,
        "memory of a GPU in GiB if NVML does not report it",
        minimum=0.001,
        aliases=nvshare_aliases("DEFAULT_GPU_MEMORY_GB"),
    )
    quota_sample_interval_ms: float = option(
        50.0,
        "milliseconds between two checks of a core quota",
        minimum=1,
        aliases=nvshare_aliases("QUOTA_SAMPLE_INTERVAL_MS"),
    )
    compute_window_ms: float = option(
        2000.0, "window of a core quota in milliseconds", minimum=100, aliases=nvshare_aliases("COMPUTE_WINDOW_MS")
    )
    quota_carryover_percent: float = option(
        25.0,
        "percent of an unused window that a client may use later",
        minimum=0,
        maximum=100,
        aliases=nvshare_aliases("QUOTA_CARRYOVER_PERCENT"),
    )
    drop_tail_billing_percent: float = option(
        100.0,
        "percent of the time between DROP_LOCK and the release that is billed; nvshare bills 70",
        minimum=0,
        maximum=100,
        aliases=nvshare_aliases("DROP_TAIL_BILLING_PERCENT"),
    )
    work_conserving: bool = option(False, "let a client exceed its core quota while no other client waits")
    revoke_after_s: float = option(
        30.0, "seconds after which a client that ignores DROP_LOCK loses its turn", minimum=1
    )
    fence: str = option(
        "second",
        "when the connection of a client that lost its turn this way is closed: "
        "never, after the second time, or the first time",
        choices=("none", "second", "disconnect"),
    )
    metrics_enable: bool = option(
        False, "open the nvshare drop-in listener on metrics_addr", aliases=("NVSHARE_METRICS_ENABLE",)
    )
    metrics_addr: str = option(
        "0.0.0.0:9402",
        "HOST:PORT, or a port, of the nvshare drop-in listener",
        check=parse_address_or_port,
        aliases=("NVSHARE_METRICS_ADDR",),
    )
    xpushare_metrics_enable: bool = option(
        False, "open the xpushare drop-in listener on xpushare_metrics_addr", aliases=("XPUSHARE_METRICS_ENABLE",)
    )
    xpushare_metrics_addr: str = option(
        "0.0.0.0:9402",
        "HOST:PORT, or a port, of the xpushare drop-in listener; different from metrics_addr if both are open",
        check=parse_address_or_port,
        aliases=("XPUSHARE_METRICS_ADDR",),
    )
    metrics_nvml_interval_ms: float = option(
        1000.0,
        "least milliseconds between two readings of the GPUs while the scheduler is enabled; "
        "sampling.interval_s applies where it is longer, and demand is not measured above 6000",
        minimum=100,
        aliases=nvshare_aliases("METRICS_NVML_INTERVAL_MS"),
    )
    metrics_debug_labels: bool = option(
        True,
        "label every series with client_id and host_pid; false: one series for all clients of a pod on a GPU",
        aliases=nvshare_aliases("METRICS_DEBUG_LABELS"),
    )
    metrics_stale_ttl_s: float = option(
        0.0,
        "seconds for which the series of a disconnected client are kept",
        minimum=0,
        aliases=nvshare_aliases("METRICS_STALE_TTL_SEC"),
    )

    @property
    def shares_programs(self) -> bool:
        return self.share_programs != "off"

    @property
    def is_used(self) -> bool:
        """Whether the scheduler runs: for the clients of nvshare, for plain programs, or both."""
        return self.enabled or self.shares_programs


@dataclass(frozen=True, slots=True)
class SharingQuotaSettings:
    """One line for each rule, such as students = { namespace = "course-*", memory = "8Gi", core = 25 }.

    All patterns of a rule must match. Rules with user, group, container, job, unit, command or share are for programs
    that share a GPU without a library (scheduler.share_programs); clients of nvshare do not match them.
    """

    pod: str = option("*", "shell pattern of the pod's name")
    namespace: str = option("*", "shell pattern of the pod's namespace")
    uid: str = option("*", "shell pattern of the numeric user id")
    user: str = option("*", "shell pattern of the user's name")
    group: str = option("*", "shell pattern of the name of one of the user's groups")
    container: str = option("*", "shell pattern of the container's name or id")
    job: str = option("*", "shell pattern of the Slurm job's id")
    unit: str = option("*", "shell pattern of the systemd unit's name, such as ollama.service")
    command: str = option(
        "*", "shell pattern of the command: its short name (train.py) or its whole line; programs choose it themselves"
    )
    memory: str = option("", "memory that each matching client may use, such as 8Gi; empty: no limit")
    core: int = option(
        0, "percent of the GPU's time that each matching client may use; 0: no limit", minimum=0, maximum=100
    )
    share: bool = option(True, "false leaves matching programs alone: they take no turns and are never paused")


@dataclass(frozen=True, slots=True)
class ParkingSettings:
    """The GPU memory of idle programs goes to host memory. For the programs of scheduler.share_programs."""

    idle_after_s: float = option(
        0.0,
        "seconds after which a program that uses neither the GPU nor the CPU is parked when its room is needed; "
        "0: programs are parked only by gpucommons park",
        minimum=0,
    )
    eager: bool = option(False, "park idle programs also while their room is not needed")
    oversubscribe: bool = option(
        False,
        "let programs that do not fit into a GPU's memory together take long turns: working programs are parked for "
        "those that wait for room, so that moving takes at most a tenth of the time",
    )
    host_reserve_percent: float = option(
        10.0, "percent of the host's memory that parking leaves free, at least 4 GiB", minimum=0, maximum=100
    )
    min_residence_s: float = option(
        120.0, "seconds for which a program that was brought back is not parked again on its own", minimum=0
    )


@dataclass(frozen=True, slots=True)
class LeasesSettings:
    """The queue of `gpucommons run`."""

    enabled: str = option(
        "auto",
        "give leases. auto: unless Slurm or Kubernetes manages the GPUs of this node",
        choices=("auto", "true", "false"),
    )
    socket: str = option(
        "",
        "socket for gpucommons run; empty: leases.sock in /run/gpucommons, or in gpucommons below $XDG_RUNTIME_DIR "
        "for an agent without root",
    )
    admin_group: str = option("", "group that may cancel leases and reservations of all users, like root; empty: none")
    pass_limit_s: float = option(
        3600.0, "seconds for which later requests may take GPUs that a waiting request could use", minimum=0
    )
    share_limit: int = option(4, "leases that may share a GPU, if all of them accept to share", minimum=1)
    no_show_after_s: float = option(
        1800.0, "seconds after which a reservation that is not used is released", minimum=60
    )
    reserve_ahead_d: float = option(14.0, "days from now at which a reservation may start at the latest", minimum=0)
    enforce: str = option(
        "report",
        "what is done about processes without a lease on an exclusively leased GPU. report: they are shown; "
        "pause: they are paused until the lease ends, also where scheduler.share_programs is off",
        choices=("report", "pause"),
    )
    mps: str = option(
        "off",
        "run commands that share a GPU (run --share) under NVIDIA's MPS, which enforces --memory and --sm. per_user: "
        "with a daemon for each user; all_users: with one daemon for all, which ends the commands of all if one of "
        "them makes a fatal error on the GPU. Needs an agent that runs as root",
        choices=("off", "per_user", "all_users"),
    )


@dataclass(frozen=True, slots=True)
class LeaseQuotaSettings:
    """One line for each rule, such as students = { group = "students", gpus = 4 } or all = { user = "*", gpus = 2 }."""

    user: str = option("", "shell pattern of user names; the quota is for each of these users")
    group: str = option("", "group whose members have the quota together, in place of user")
    gpus: float = option(
        0.0, "GPUs that may be leased at once; a MIG device counts by its slices; 0: no limit", minimum=0
    )
    hours: float = option(0.0, "GPU-hours in the last 30 days, from the accounts; 0: no limit", minimum=0)
    sm_percent: int = option(
        0,
        "percent of a GPU's threads that each command may use under MPS (leases.mps), whatever the number of commands; "
        "0: no limit",
        minimum=0,
        maximum=100,
    )


@dataclass(frozen=True, slots=True)
class IdleSettings:
    """Messages to holders of idle GPUs. They are shown by gpucommons me, and sent by [mail] and [webhook] if set."""

    after_s: float = option(
        7200.0,
        "seconds for which a holder has not used its GPUs when it gets the first message, and length of the window in "
        "which that is judged; 0: no messages",
        minimum=0,
    )
    active_percent: float = option(
        1.0,
        "percent of an idle period, or of its last after_s, that may be used without ending the period",
        minimum=0,
        maximum=50,
    )
    remind_after_s: float = option(
        7200.0, "seconds of further idleness from the first message to a reminder; 0: none", minimum=0
    )
    act: str = option(
        "none",
        "what is done to a holder that stays idle. park: the GPU memory of its programs goes to host memory "
        "(scheduler.share_programs); end_lease: its lease is ended; none: nothing",
        choices=("none", "park", "end_lease"),
    )
    act_after_s: float = option(
        14_400.0, "seconds of further idleness from the first delivered message to the action of act", minimum=1
    )
    digest_day: str = option(
        "monday",
        "day of the weekly digest to mail.admin and [webhook]: hours held, active and wasted, and lost GPUs",
        choices=("off", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"),
    )
    digest_hour: int = option(8, "hour of the weekly digest, in local time, 0 to 23", minimum=0, maximum=23)


@dataclass(frozen=True, slots=True)
class IdleRuleSettings:
    """One line for each rule, such as services = { user = "svc-*", leave_alone = true }. The first that matches counts.

    A rule without leave_alone and email changes nothing.
    """

    user: str = option("*", "shell pattern of the user's name; for a pod, of NAMESPACE/POD")
    leave_alone: bool = option(False, "true: no message and no action")
    email: str = option(
        "", "email address of these users, in which {user} is the name; empty: mail.address", check=check_mail_pattern
    )


@dataclass(frozen=True, slots=True)
class MailSettings:
    """The mail server for messages of [idle]."""

    server: str = option("", "HOST:PORT of the SMTP server; empty: no email", check=parse_remote_address)
    tls: str = option(
        "starttls",
        "encryption of the connection: starttls (port 587), tls (port 465) or none (a relay on this machine)",
        choices=("starttls", "tls", "none"),
    )
    ca_file: str = option(
        "", "certificate of the authority that signed the server's certificate; empty: those of the system"
    )
    user: str = option("", "name for the login at the server; empty: no login")
    password_file: str = option("", "file whose first line is the password of mail.user, read for each message")
    sender: str = option("", "address from which messages are sent; needed with mail.server", check=check_mail_address)
    address: str = option(
        "",
        "address of a user, in which {user} is the name, such as {user}@example.org; empty: only users with a rule in "
        "[idle_rules] get email",
        check=check_mail_pattern,
    )
    admin: str = option("", "address that gets the weekly digest; empty: none", check=check_mail_address)


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """A webhook that accepts {"text": ...}, such as one of Slack or Mattermost. It gets the messages of [idle]."""

    url: str = option("", "URL of the webhook; empty: none, unless url_file is set", check=check_url)
    url_file: str = option("", "file whose first line is the URL, in place of url, read for each message; empty: none")


@dataclass(frozen=True, slots=True)
class LedgerSettings:
    """The durable accounts. The state directory is /var/lib/gpucommons, or ~/.local/state/gpucommons for a user."""

    enabled: bool = option(True, "record who held and used which GPU, on a node that has a GPU")
    file: str = option(
        "",
        "path of the ledger, also of a simulation; empty: ledger.sqlite in the state directory, "
        "for a simulation ledger-NAME.sqlite",
    )
    flush_s: float = option(10.0, "seconds between two writes; a crash loses at most this much", minimum=1)
    keep_minutes_d: float = option(2.0, "days for which usage is kept by the minute", minimum=1)
    keep_hours_d: float = option(400.0, "days for which usage is kept by the hour", minimum=2)
    keep_days_d: float = option(1830.0, "days for which usage is kept by the day", minimum=31)
    active_ratio: float = option(0.05, "share of its allocation that an active workload uses, 0 to 1", minimum=0)


@dataclass(frozen=True, slots=True)
class AccountsSettings:
    """What the accounts cost. The prices in force are applied to every period, also to a past one."""

    price_per_gpu_hour: str = option(
        "",
        "price of holding a GPU for an hour: a number, or a table by shell patterns of the GPU's model of which the "
        'first that matches decides, such as { "*H100*" = 2.5, "*" = 1 }; a MIG device costs its part of the GPU; '
        "a GPU that no pattern matches has no price; empty: no cost is shown",
        check=parse_prices,
        as_text=price_text,
    )
    price_per_kwh: float = option(
        0.0, "price of a kilowatt-hour, which is added to the cost; 0: energy costs nothing extra", minimum=0
    )
    currency: str = option("", "currency of the prices, such as EUR; empty: not shown", check=check_currency)
    co2_g_per_kwh: float = option(
        0.0, "grams of CO2 that a kilowatt-hour causes, for the CO2 of each row; 0: not shown", minimum=0
    )


@dataclass(frozen=True, slots=True)
class EventsSettings:
    file: str = option("/var/log/ds01/events.jsonl", "event log of DS01, which is followed if it exists")
    own_file: str = option(
        "",
        "path of the agent's event log, also of a simulation; empty: events.jsonl in the state directory, "
        "for a simulation events-NAME.jsonl",
    )


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
class QuotaSettings:
    """One line for each user, such as alice = { gpu_equivalents = 2 }."""

    gpu_equivalents: float = option(0.0, "GPU-equivalents that the user may hold", minimum=0)


@dataclass(frozen=True, slots=True)
class PrivacySettings:
    show_owners: str = option(
        "auto",
        "names that a viewer sees. all: every owner's; own: only the viewer's own, and no metrics, "
        "unless the viewer is root, the agent's user or has a password; "
        "auto: all on loopback, own elsewhere, metrics open on TCP (table in docs/web.md)",
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


@dataclass(frozen=True, slots=True)
class AlertsSettings:
    alertmanager_url: str = option("", "URL of an Alertmanager, for alerts on the page; empty: none", check=check_url)


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
