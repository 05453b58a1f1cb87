"""The host of scenario lab: a 64-core server of a research group, with its CPUs, memory, disks and sensors."""

from gpucommons.model.host import (
    Bond,
    Chip,
    Clock,
    ClockDiscipline,
    ClockSource,
    Conntrack,
    CoreTimes,
    CpuReading,
    CpuThrottles,
    Disk,
    FileHandles,
    Filesystem,
    FilesystemReading,
    HardwareReading,
    KernelReading,
    LinkCounters,
    MemoryReading,
    NetworkDevice,
    Pressure,
    PressureLine,
    PressureReading,
    Raid,
    ReadRun,
    Sensor,
    Sockets,
    SoftnetCounters,
    Space,
    SystemActivity,
    TextFamily,
    TextFilesReading,
    TextSample,
    Uname,
)
from gpucommons.model.process_identity import ProcessKey, ProcessRow, ProcessTable
from gpucommons.simulation.day import daylight, daylight_seconds, wobble
from gpucommons.simulation.lab_jobs import FixedLoad, LabLoad
from gpucommons.sources.host.processes import Busiest

# The host of scenario lab: a 64-core server of a research group, its CPUs, memory, pressure and processes.

CORES = 64
MEMORY_BYTES = 512 * 2**30
# The boot time is a new year's midnight; the uptime at the start of the simulation is fixed.
BOOT_TIME_S = 1_767_225_600
UPTIME_S = 20 * 86_400.0
_TICKS_PER_S = 100

# name, CPU cores it keeps busy by day, resident GiB
_PROCESSES = (
    ("systemd", 0.002, 0.02),
    ("dockerd", 0.05, 0.3),
    ("sshd", 0.001, 0.01),
    ("prometheus", 0.08, 1.2),
    ("jupyter-lab", 0.12, 0.9),
    ("python", 6.0, 38.0),
    ("torchrun", 4.5, 52.0),
    ("lm-eval", 2.2, 16.0),
    ("pt_data_worker", 9.0, 7.5),
    ("vllm", 3.1, 24.0),
    ("ray::worker", 2.4, 11.0),
    ("code-server", 0.4, 1.8),
    ("rsync", 0.6, 0.1),
    ("node_exporter", 0.01, 0.03),
)


def _busy(elapsed_s: float) -> float:
    return 0.08 + 0.55 * daylight(elapsed_s) + 0.04 * wobble(elapsed_s, 37)


def cpu(elapsed_s: float) -> CpuReading:
    busy = _busy(elapsed_s)
    load = CORES * busy
    # As in the real source, utilisation requires two readings: the first has none.
    ratio = busy if elapsed_s > 0 else None
    times = {str(core): _core_times(core, elapsed_s) for core in range(CORES)}
    return CpuReading(CORES, load, load * 0.97, load * 0.93, ratio, times, _activity(elapsed_s, load))


def _core_times(core: int, elapsed_s: float) -> CoreTimes:
    """Counted since boot. The first cores are busier than the last."""
    whole_s = UPTIME_S + elapsed_s
    worked_s = (0.08 * whole_s + 0.55 * (UPTIME_S / 2 + daylight_seconds(elapsed_s))) * (1.2 - 0.4 * core / CORES)
    return CoreTimes(
        user=0.82 * worked_s,
        nice=0.01 * worked_s,
        system=0.15 * worked_s,
        idle=whole_s - 1.03 * worked_s,
        iowait=0.03 * worked_s,
        irq=0.0,
        softirq=0.02 * worked_s,
        steal=0.0,
        guest=0.0,
        guest_nice=0.0,
    )


def _activity(elapsed_s: float, load: float) -> SystemActivity:
    worked_s = UPTIME_S / 2 + daylight_seconds(elapsed_s)
    return SystemActivity(
        boot_time_s=BOOT_TIME_S,
        interrupts=int(41_000 * worked_s),
        context_switches=int(88_000 * worked_s),
        forks=int(37 * worked_s),
        processes_running=max(1, round(load)),
        processes_blocked=0,
    )


# Simulated fields of /proc/meminfo, as shares of the memory in use.
_PARTS_OF_USED = {
    "AnonPages": 0.78,
    "Active": 0.62,
    "Active(anon)": 0.48,
    "Active(file)": 0.14,
    "Inactive": 0.4,
    "Inactive(anon)": 0.28,
    "Inactive(file)": 0.12,
    "Mapped": 0.09,
    "Shmem": 0.05,
    "Slab": 0.06,
    "SReclaimable": 0.04,
    "SUnreclaim": 0.02,
    "KReclaimable": 0.04,
    "KernelStack": 0.001,
    "PageTables": 0.004,
    "Committed_AS": 1.4,
    "AnonHugePages": 0.3,
    "Percpu": 0.001,
    "Dirty": 0.0005,
}
_EMPTY_FIELDS = (
    *("SwapCached", "SwapTotal", "SwapFree", "Unevictable", "Mlocked", "Writeback"),
    *("SecPageTables", "NFS_Unstable", "Bounce", "WritebackTmp", "VmallocChunk"),
    *("HardwareCorrupted", "ShmemHugePages", "ShmemPmdMapped", "FileHugePages"),
    *("FilePmdMapped", "Hugetlb"),
)


def memory(elapsed_s: float) -> MemoryReading:
    used_ratio = 0.18 + 0.42 * daylight(elapsed_s) + 0.02 * wobble(elapsed_s, 91)
    available = int(MEMORY_BYTES * (1 - used_ratio))
    used, cached = MEMORY_BYTES - available, int(0.25 * available)
    sizes = {
        "MemTotal": MEMORY_BYTES,
        "MemFree": available - cached,
        "MemAvailable": available,
        "Buffers": cached // 50,
        "Cached": cached,
        "CommitLimit": MEMORY_BYTES // 2,
        "VmallocTotal": 2**45,
        "VmallocUsed": 2**28,
        "Hugepagesize": 2**21,
        "DirectMap4k": 2**30,
        "DirectMap2M": 2**36,
        "DirectMap1G": MEMORY_BYTES - 2**36,
        **{field: int(part * used) for field, part in _PARTS_OF_USED.items()},
        **dict.fromkeys(_EMPTY_FIELDS, 0),
    }
    counts = dict.fromkeys(("HugePages_Total", "HugePages_Free", "HugePages_Rsvd", "HugePages_Surp"), 0)
    return MemoryReading(MEMORY_BYTES, available, sizes, counts)


def pressure(elapsed_s: float) -> PressureReading:
    by_day, worked_s = daylight(elapsed_s), daylight_seconds(elapsed_s)

    def line(max_percent: float) -> PressureLine:
        percent = max_percent * by_day
        return PressureLine(percent, percent * 0.9, percent * 0.8, max_percent / 100 * worked_s)

    return PressureReading(
        cpu=Pressure(line(9), line(0)),
        memory=Pressure(line(2), line(0.4)),
        io=Pressure(line(5), line(2)),
    )


class LabProcesses:
    """The processes of the lab; selects the busiest as the real source does."""

    def __init__(self, busiest_limit: int, load: LabLoad | None = None) -> None:
        self._busiest = Busiest(busiest_limit)
        self._load = load or FixedLoad()

    def at(self, elapsed_s: float) -> ProcessTable:
        rows = [self._row(index, elapsed_s) for index in range(len(_PROCESSES))]
        rows += self._jobs(elapsed_s)
        by_pid = {row.key.pid: row for row in rows}
        return ProcessTable(by_pid, self._busiest.choose(by_pid, elapsed_s))

    def _row(self, index: int, elapsed_s: float) -> ProcessRow:
        name, cores, gib = _PROCESSES[index]
        key = ProcessKey(2000 + 37 * index, _TICKS_PER_S * (60 + 11 * index))
        rss = gib * 2**30 * (1 + 0.03 * wobble(elapsed_s, 53, index))
        return ProcessRow(key, name, 3600 * cores + cores * elapsed_s, int(rss))

    def _jobs(self, elapsed_s: float) -> list[ProcessRow]:
        """A job on a GPU is also a process of the host."""
        load = self._load
        return [
            ProcessRow(job.key, job.name, load.cpu_seconds(job, elapsed_s), load.resident_bytes(job, elapsed_s))
            for job in load.jobs()
        ]


# Kernel counters of scenario lab: disks, network, paging, sockets, file systems and sensors.

_GB = 10**9
_PAGE_BYTES = 4096
_SECTOR_BYTES = 512
_READ_TOOK_S = 0.0001
_PARTS = (
    *("vmstat", "disks", "links", "file_handles", "conntrack", "sockets", "uname", "clock", "clock_discipline"),
    *("protocols", "softnet", "devices", "bonds", "raids"),
)


def kernel(elapsed_s: float) -> KernelReading:
    worked_s = UPTIME_S / 2 + daylight_seconds(elapsed_s)
    by_day = daylight(elapsed_s)
    return KernelReading(
        vmstat={
            "pgpgin": int(310_000 * worked_s),
            "pgpgout": int(95_000 * worked_s),
            "pswpin": 0,
            "pswpout": 0,
            "pgfault": int(61_000 * worked_s),
            "pgmajfault": int(3 * worked_s),
            "oom_kill": 2,
        },
        disks=(
            _disk("nvme0n1", 0, worked_s, 20e6, 45e6, "SAMSUNG MZQL23T8HCLS"),
            _disk("nvme1n1", 1, worked_s, 290e6, 50e6, "SAMSUNG MZQL27T6HBLA"),
        ),
        links={
            "lo": _link(worked_s, 2e6, 2e6),
            "eno1": _link(worked_s, 85e6, 31e6),
            "docker0": _link(worked_s, 4e6, 6e6),
        },
        file_handles=FileHandles(int(21_000 + 15_000 * by_day), 9_223_372_036_854_775_807),
        conntrack=Conntrack(
            int(900 + 2400 * by_day),
            262_144,
            {
                "found": int(worked_s),
                "invalid": int(0.2 * worked_s),
                "ignore": 0,
                "insert": int(12 * worked_s),
                "insert_failed": 0,
                "drop": 0,
                "early_drop": 0,
                "search_restart": int(0.1 * worked_s),
            },
        ),
        sockets=_sockets(by_day),
        uname=Uname("Linux", "6.8.0-45-generic", "#45-Ubuntu SMP PREEMPT_DYNAMIC", "x86_64", "lab", "(none)"),
        clock=Clock("UTC", 0, (ClockSource(("tsc", "hpet", "acpi_pm"), "tsc"),)),
        clock_discipline=_clock_discipline(elapsed_s),
        protocols=_protocols(worked_s, by_day),
        softnet=tuple(SoftnetCounters(int(1200 * worked_s), 0, int(0.02 * worked_s)) for _ in range(CORES)),
        devices={
            "lo": _device(1, 65_536, "unknown"),
            "eno1": _device(2, 9000, "up"),
            "docker0": _device(3, 1500, "up"),
        },
        bonds={"bond0": Bond(2, 2)},
        raids=(Raid("md0", "active", 2, 2, 0, 0, 937_560_064, 937_560_064),),
        runs={part: ReadRun(_READ_TOOK_S) for part in _PARTS},
    )


def _disk(name: str, number: int, worked_s: float, read_rate: float, write_rate: float, model: str) -> Disk:
    read, written = read_rate * worked_s, write_rate * worked_s
    reads, writes, busy_ms = int(read / 128e3), int(written / 64e3), int(180 * worked_s)
    counters = (
        *(reads, reads // 40, int(read / _SECTOR_BYTES), int(reads * 0.2)),
        *(writes, writes // 9, int(written / _SECTOR_BYTES), int(writes * 0.1)),
        *(0, busy_ms, 2 * busy_ms),
        *(writes // 100, 0, writes // 2, writes // 1000),
        *(writes // 50, writes // 500),
    )
    properties = {
        "ID_PATH": f"pci-0000:{0x41 + number:x}:00.0-nvme-1",
        "ID_WWN": f"eui.3634473057{number:06d}",
        "ID_MODEL": model,
        "ID_SERIAL_SHORT": f"S64GNE0W{number:06d}",
        "ID_REVISION": "GDC5902Q",
    }
    return Disk(name, 259, number, counters, properties)


def _link(worked_s: float, receive_rate: float, send_rate: float) -> LinkCounters:
    received, sent = int(receive_rate * worked_s), int(send_rate * worked_s)
    none = dict.fromkeys(LinkCounters._fields, 0)
    counted = {
        "rx_bytes": received,
        "tx_bytes": sent,
        "rx_packets": received // 1100,
        "tx_packets": sent // 900,
        "multicast": int(0.4 * worked_s),
        "rx_dropped": int(0.01 * worked_s),
    }
    return LinkCounters(**none | counted)


def _clock_discipline(elapsed_s: float) -> ClockDiscipline:
    return ClockDiscipline(
        synchronised=True,
        in_nanoseconds=True,
        offset=round(40_000 * wobble(elapsed_s, 61)),
        frequency=-1_205_862,
        max_error_us=12_000,
        estimated_error_us=180,
        status=0x2001,
        time_constant=7,
        tick_us=10_000,
        pps_frequency=0,
        pps_jitter=0,
        pps_shift=0,
        pps_stability=0,
        pps_jitter_exceeded=0,
        pps_calibrations=0,
        pps_errors=0,
        pps_stability_exceeded=0,
        tai_offset_s=37,
    )


_UDP_FIELDS = ("InDatagrams", "InErrors", "NoPorts", "OutDatagrams", "RcvbufErrors", "SndbufErrors")
# Protocol counters that stay at zero in the lab.
_QUIET_PROTOCOLS = (
    *(f"Icmp{six}_{field}" for six in ("", "6") for field in ("InErrors", "InMsgs", "OutMsgs")),
    *(f"Udp{six}_{field}" for six in ("", "6") for field in _UDP_FIELDS),
    *("Ip6_InOctets", "Ip6_OutOctets", "UdpLite_InErrors", "UdpLite6_InErrors", "Tcp_InErrs", "Tcp_OutRsts"),
    *("TcpExt_ListenDrops", "TcpExt_ListenOverflows", "TcpExt_TCPSynRetrans"),
    *("TcpExt_SyncookiesFailed", "TcpExt_SyncookiesRecv", "TcpExt_SyncookiesSent"),
)


def _protocols(worked_s: float, by_day: float) -> dict[str, int]:
    received, sent = int(85e6 * worked_s), int(31e6 * worked_s)
    return dict.fromkeys(_QUIET_PROTOCOLS, 0) | {
        "IpExt_InOctets": received,
        "IpExt_OutOctets": sent,
        "Ip_Forwarding": 1,
        "Tcp_ActiveOpens": int(4 * worked_s),
        "Tcp_PassiveOpens": int(7 * worked_s),
        "Tcp_CurrEstab": int(240 + 600 * by_day),
        "Tcp_InSegs": received // 1100,
        "Tcp_OutSegs": sent // 900,
        "Tcp_RetransSegs": int(0.5 * worked_s),
        "TcpExt_TCPTimeouts": int(0.1 * worked_s),
        "Udp_InDatagrams": int(9 * worked_s),
        "Udp_OutDatagrams": int(8 * worked_s),
    }


def _device(number: int, mtu: int, state: str) -> NetworkDevice:
    numbers = {
        **dict.fromkeys(("addr_assign_type", "dev_id", "dormant", "link_mode", "netdev_group"), 0),
        **dict.fromkeys(("carrier", "carrier_up_count", "carrier_down_count", "type"), 1),
        "ifindex": number,
        "iflink": number,
        "mtu": mtu,
        "flags": 0x1003,
        "tx_queue_len": 1000,
        "carrier_changes": 2,
        "name_assign_type": 4,
    }
    if state == "up":
        numbers["speed"] = 25_000
    texts = {"address": f"02:00:00:00:00:{number:02x}", "broadcast": "ff:ff:ff:ff:ff:ff", "duplex": "full"}
    return NetworkDevice(numbers, texts | {"operstate": state})


def text_files(_elapsed_s: float) -> TextFilesReading:
    """The nightly backup reports its result."""
    ended_s = BOOT_TIME_S + UPTIME_S - 6 * 3600
    sample = TextSample("backup_last_success_timestamp_seconds", (("volume", "home"),), ended_s)
    family = TextFamily(sample.name, "gauge", "Time of the last successful backup.", (sample,))
    return TextFilesReading((family,), {"/var/lib/prometheus/node-exporter/backup.prom": int(ended_s)})


def _sockets(by_day: float) -> Sockets:
    tcp = int(240 + 600 * by_day)
    return Sockets(
        int(1400 + 900 * by_day),
        {
            "TCP": {"inuse": tcp, "orphan": 0, "tw": tcp // 5, "alloc": tcp + 30, "mem": tcp // 3},
            "UDP": {"inuse": 14, "mem": 5},
            "UDPLITE": {"inuse": 0},
            "RAW": {"inuse": 0},
            "FRAG": {"inuse": 0, "memory": 0},
            "TCP6": {"inuse": 22},
            "UDP6": {"inuse": 6},
            "UDPLITE6": {"inuse": 0},
            "RAW6": {"inuse": 1},
            "FRAG6": {"inuse": 0, "memory": 0},
        },
        _PAGE_BYTES,
    )


def filesystems(elapsed_s: float) -> FilesystemReading:
    by_day = daylight(elapsed_s)
    return FilesystemReading(
        (
            Filesystem("/dev/nvme0n1p2", "/", "ext4", False, _space(940 * _GB, 0.46)),
            Filesystem("/dev/nvme1n1", "/scratch", "xfs", False, _space(7600 * _GB, 0.71 + 0.06 * by_day)),
            Filesystem("nas:/export/home", "/home", "nfs4", False, _space(60_000 * _GB, 0.83)),
            Filesystem("tmpfs", "/run", "tmpfs", False, _space(54 * _GB, 0.001)),
        )
    )


def _space(size_bytes: int, used_ratio: float) -> Space:
    free, files = int(size_bytes * (1 - used_ratio)), size_bytes // 16_384
    return Space(size_bytes, free, int(free * 0.95), files, int(files * (1 - used_ratio / 4)))


def hardware(elapsed_s: float) -> HardwareReading:
    warmer = 18 * daylight(elapsed_s) + wobble(elapsed_s, 29)
    packages = tuple(_package(number, 48 + warmer) for number in (0, 1))
    board = Chip(
        "platform_nct6775_656",
        "nct6798",
        (
            Sensor("temp1", "temp", "SYSTIN", {"input": 34_000, "type": 4, "alarm": 0, "max": 80_000}),
            Sensor("fan1", "fan", None, {"input": round(6200 + 90 * warmer), "min": 0, "alarm": 0}),
            Sensor("in0", "in", "Vcore", {"input": 920, "min": 0, "max": 1744}),
            Sensor("pwm1", "pwm", None, {"": 143}),
        ),
    )
    drive = Chip(
        "nvme_nvme0",
        "nvme",
        (
            Sensor(
                "temp1",
                "temp",
                "Composite",
                {"input": round(41_850 + 300 * warmer), "min": -273_150, "max": 71_850, "crit": 84_850, "alarm": 0},
            ),
        ),
    )
    meter = Chip(
        "platform_acpi000d_00",
        "power_meter",
        (Sensor("power1", "power", None, {"average": round((1900 + 180 * warmer) * 1e6), "average_interval": 1000}),),
    )
    cores = {(str(core % 2), str(core // 2)): 0 for core in range(CORES)}
    return HardwareReading((*packages, board, drive, meter), 0, CpuThrottles(cores, {"0": 0, "1": 0}), ())


def _package(number: int, celsius: float) -> Chip:
    limits = {"max": 84_000, "crit": 94_000, "crit_alarm": 0}
    labels = (f"Package id {number}", *(f"Core {core}" for core in range(4)))
    sensors = tuple(
        Sensor(f"temp{place}", "temp", label, {"input": round(celsius - place / 2) * 1000, **limits})
        for place, label in enumerate(labels, 1)
    )
    return Chip(f"platform_coretemp_{number}", "coretemp", sensors)
