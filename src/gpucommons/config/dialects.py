"""The settings of metric vocabularies that replace other exporters. Values only."""

from collections.abc import Mapping
from dataclasses import dataclass

from gpucommons.config.option import check_expression, option

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


def _excluded(default: str, help: str) -> str:
    value: str = option(default, f"regular expression of the {help} to leave out; empty: none", check=check_expression)
    return value


@dataclass(frozen=True, slots=True)
class NodeExporterSettings:
    """What the nodeexporter dialect reads and leaves out. Names and defaults are those of node_exporter's flags."""

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
    netclass_ignored_devices: str = _excluded("", "network devices whose properties are")
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
