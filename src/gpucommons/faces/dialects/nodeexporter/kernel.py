"""node_exporter's families of kernel counters, clocks, pressure, sockets and sensors, and of the exporter itself.

What /proc/stat counts has names of its own: boot time, context switches, forks, interrupts, processes.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import cache

from gpucommons.faces.exposition.families import Family, Metric, counter, gauge, join_families, untyped
from gpucommons.model.host import Chip, Clock, ClockDiscipline, PressureLine, Sensor
from gpucommons.model.snapshot import Snapshot

# node_vmstat_*: paging, swapping and OOM kills. Untyped, as in node_exporter.

VMSTAT_PREFIX = "node_vmstat_"


@cache
def vmstat_metric_of(field: str) -> Metric:
    return untyped(VMSTAT_PREFIX + field, f"Value of {field} in /proc/vmstat, since boot.")


VMSTAT_CATALOGUE = tuple(
    map(vmstat_metric_of, ("pgpgin", "pgpgout", "pswpin", "pswpout", "pgfault", "pgmajfault", "oom_kill"))
)


def collect_vmstat(snapshot: Snapshot) -> Iterator[Family]:
    kernel = snapshot.readings.kernel
    if kernel is not None and kernel.vmstat is not None:
        for field, value in kernel.vmstat.items():
            yield vmstat_metric_of(field).value(value)


# node_boot_time_*, node_context_switches_*, node_forks_*, node_intr_*, node_procs_*: what /proc/stat counts.

BOOT_TIME = gauge("node_boot_time_seconds", "Unix time at which the host booted.")
CONTEXT_SWITCHES = counter("node_context_switches_total", "Context switches since boot.")
FORKS = counter("node_forks_total", "Processes and threads created since boot.")
INTERRUPTS = counter("node_intr_total", "Interrupts served since boot.")
RUNNING = gauge("node_procs_running", "Processes that run or are ready to run.")
BLOCKED = gauge("node_procs_blocked", "Processes that wait for I/O.")

STAT_CATALOGUE = (BOOT_TIME, CONTEXT_SWITCHES, FORKS, INTERRUPTS, RUNNING, BLOCKED)


def collect_stat(snapshot: Snapshot) -> Iterator[Family]:
    cpu = snapshot.readings.cpu
    activity = None if cpu is None else cpu.activity
    if activity is not None:
        yield BOOT_TIME.value(activity.boot_time_s)
        yield CONTEXT_SWITCHES.value(activity.context_switches)
        yield FORKS.value(activity.forks)
        yield INTERRUPTS.value(activity.interrupts)
        yield RUNNING.value(activity.processes_running)
        yield BLOCKED.value(activity.processes_blocked)


# node_uname_info: names and versions of the kernel and the node.

INFO = gauge(
    "node_uname_info",
    "Names and versions of the kernel and the node; always 1.",
    *("sysname", "release", "version", "machine", "nodename", "domainname"),
)

UNAME_CATALOGUE = (INFO,)


def collect_uname(snapshot: Snapshot) -> Iterator[Family]:
    kernel = snapshot.readings.kernel
    if kernel is not None and (own := kernel.uname) is not None:
        yield INFO.value(1, own.sysname, own.release, own.version, own.machine, own.nodename, own.domainname)


# node_time_*: the time of the snapshot, the time zone, and the kernel's clock sources; node_timex_*: how the clock is
# kept.

_TIME_MICRO, _NANO = 1_000_000, 1_000_000_000
# The kernel's unit of a frequency: parts per million, with 16 bits of fraction.
_FREQUENCY = 1_000_000.0 * 65536.0

SECONDS = gauge("node_time_seconds", "Unix time of the snapshot.")
ZONE_OFFSET = gauge("node_time_zone_offset_seconds", "Offset of local time from UTC in seconds.", "time_zone")
CLOCKSOURCE_AVAILABLE = gauge(
    "node_time_clocksource_available_info",
    "Clock source that is available to the kernel; always 1.",
    "device",
    "clocksource",
)
CLOCKSOURCE_CURRENT = gauge(
    "node_time_clocksource_current_info", "Clock source that the kernel uses; always 1.", "device", "clocksource"
)


def _timex(name: str, help: str) -> Metric:
    return (counter if name.endswith("_total") else gauge)(f"node_timex_{name}", help)


def _fraction(state: ClockDiscipline) -> int:
    return _NANO if state.in_nanoseconds else _TIME_MICRO


TIMEX: tuple[tuple[Metric, Callable[[ClockDiscipline], float]], ...] = (
    (
        _timex("sync_status", "State of the clock: 1 if it is synchronised to a reliable server, else 0."),
        lambda state: int(state.synchronised),
    ),
    (
        _timex("offset_seconds", "Offset of the clock from the reference clock in seconds."),
        lambda state: state.offset / _fraction(state),
    ),
    (
        _timex("frequency_adjustment_ratio", "Ratio by which the frequency of the clock is adjusted."),
        lambda state: 1 + state.frequency / _FREQUENCY,
    ),
    (
        _timex("maxerror_seconds", "Maximum error of the clock in seconds."),
        lambda state: state.max_error_us / _TIME_MICRO,
    ),
    (
        _timex("estimated_error_seconds", "Estimated error of the clock in seconds."),
        lambda state: state.estimated_error_us / _TIME_MICRO,
    ),
    (_timex("status", "Status bits of the clock."), lambda state: state.status),
    (_timex("loop_time_constant", "Time constant of the phase-locked loop."), lambda state: state.time_constant),
    (_timex("tick_seconds", "Seconds between two ticks of the clock."), lambda state: state.tick_us / _TIME_MICRO),
    (
        _timex("pps_frequency_hertz", "Frequency of the pulse-per-second signal."),
        lambda state: state.pps_frequency / _FREQUENCY,
    ),
    (
        _timex("pps_jitter_seconds", "Jitter of the pulse-per-second signal in seconds."),
        lambda state: state.pps_jitter / _fraction(state),
    ),
    (_timex("pps_shift_seconds", "Interval of the pulse-per-second signal."), lambda state: state.pps_shift),
    (
        _timex("pps_stability_hertz", "Stability of the pulse-per-second signal."),
        lambda state: state.pps_stability / _FREQUENCY,
    ),
    (
        _timex("pps_jitter_total", "Pulses whose jitter exceeded the limit."),
        lambda state: state.pps_jitter_exceeded,
    ),
    (_timex("pps_calibration_total", "Calibration intervals of the pulse."), lambda state: state.pps_calibrations),
    (_timex("pps_error_total", "Calibration errors of the pulse."), lambda state: state.pps_errors),
    (
        _timex("pps_stability_exceeded_total", "Calibrations whose stability exceeded the limit."),
        lambda state: state.pps_stability_exceeded,
    ),
    (_timex("tai_offset_seconds", "Offset of atomic time (TAI) from UTC."), lambda state: state.tai_offset_s),
)

TIME_CATALOGUE = (
    SECONDS,
    ZONE_OFFSET,
    CLOCKSOURCE_AVAILABLE,
    CLOCKSOURCE_CURRENT,
    *(metric for metric, _ in TIMEX),
)


def collect_time(snapshot: Snapshot) -> Iterator[Family]:
    kernel = snapshot.readings.kernel
    if kernel is None:
        return
    if kernel.clock is not None:
        yield from _clock(kernel.clock, snapshot.wall_s)
    if kernel.clock_discipline is not None:
        for metric, value in TIMEX:
            yield metric.value(value(kernel.clock_discipline))


def _clock(clock: Clock, wall_s: float) -> Iterator[Family]:
    numbered = [(str(number), source) for number, source in enumerate(clock.sources)]
    yield SECONDS.value(wall_s)
    yield ZONE_OFFSET.value(clock.zone_offset_s, clock.zone)
    yield CLOCKSOURCE_AVAILABLE.of(((number, name), 1) for number, source in numbered for name in source.available)
    yield CLOCKSOURCE_CURRENT.of(((number, source.current), 1) for number, source in numbered)


# node_filefd_*: open file handles of the host.

ALLOCATED = gauge("node_filefd_allocated", "Open file handles of the host.")
MAXIMUM = gauge("node_filefd_maximum", "Maximum number of open file handles of the host.")

FILEFD_CATALOGUE = (ALLOCATED, MAXIMUM)


def collect_filefd(snapshot: Snapshot) -> Iterator[Family]:
    kernel = snapshot.readings.kernel
    if kernel is not None and (handles := kernel.file_handles) is not None:
        yield ALLOCATED.value(handles.allocated)
        yield MAXIMUM.value(handles.maximum)


# node_pressure_*: seconds in which tasks waited for a CPU, I/O or memory (PSI).

CPU_WAITING = counter("node_pressure_cpu_waiting_seconds_total", "Seconds in which some task waited for a CPU.")
IO_WAITING = counter("node_pressure_io_waiting_seconds_total", "Seconds in which some task waited for I/O.")
IO_STALLED = counter("node_pressure_io_stalled_seconds_total", "Seconds in which every task waited for I/O.")
MEMORY_WAITING = counter("node_pressure_memory_waiting_seconds_total", "Seconds in which some task waited for memory.")
MEMORY_STALLED = counter("node_pressure_memory_stalled_seconds_total", "Seconds in which every task waited for memory.")

PRESSURE_CATALOGUE = (CPU_WAITING, IO_WAITING, IO_STALLED, MEMORY_WAITING, MEMORY_STALLED)


def collect_pressure(snapshot: Snapshot) -> Iterator[Family]:
    pressure = snapshot.readings.pressure
    if pressure is None:
        return
    cpu, io, memory = pressure.cpu, pressure.io, pressure.memory
    if cpu is not None:
        yield CPU_WAITING.value(_seconds(cpu.some))
    if io is not None:
        yield IO_WAITING.value(_seconds(io.some))
        yield IO_STALLED.value(_seconds(io.full))
    if memory is not None:
        yield MEMORY_WAITING.value(_seconds(memory.some))
        yield MEMORY_STALLED.value(_seconds(memory.full))


def _seconds(line: PressureLine | None) -> float | None:
    return None if line is None else line.stalled_seconds_total


# node_nf_conntrack_*: the table of tracked connections. Its counts are gauges, as in node_exporter.

ENTRIES = gauge("node_nf_conntrack_entries", "Tracked connections.")
LIMIT = gauge("node_nf_conntrack_entries_limit", "Maximum number of tracked connections.")
STATISTICS = {
    name: gauge(f"node_nf_conntrack_stat_{name}", help)
    for name, help in (
        ("found", "Lookups that found an entry, since boot."),
        ("invalid", "Packets that cannot be tracked, since boot."),
        ("ignore", "Packets that belong to an already tracked connection, since boot."),
        ("insert", "Entries added since boot."),
        ("insert_failed", "Entries that could not be added, since boot."),
        ("drop", "Packets dropped because tracking failed, since boot."),
        ("early_drop", "Entries dropped to make room for others, since boot."),
        ("search_restart", "Lookups restarted because the table was resized, since boot."),
    )
}

NF_CONNTRACK_CATALOGUE = (ENTRIES, LIMIT, *STATISTICS.values())


def collect_nf_conntrack(snapshot: Snapshot) -> Iterator[Family]:
    kernel = snapshot.readings.kernel
    if kernel is not None and (conntrack := kernel.conntrack) is not None:
        yield ENTRIES.value(conntrack.entries)
        yield LIMIT.value(conntrack.limit)
        for name, metric in STATISTICS.items():
            yield metric.value(conntrack.statistics.get(name))


# node_sockstat_*: sockets by protocol. The kernel names the protocols.

SOCKSTAT_PREFIX = "node_sockstat_"
_FIELDS = {
    "inuse": "{} sockets in use.",
    "orphan": "{} sockets that no process holds any longer.",
    "tw": "{} sockets in the state TIME_WAIT.",
    "alloc": "Allocated {} sockets.",
    "mem": "Memory pages of {} sockets.",
    "memory": "Memory of {} in bytes.",
    "mem_bytes": "Memory of {} sockets in bytes.",
}


@cache
def sockstat_metric_of(protocol: str, field: str) -> Metric:
    return gauge(f"{SOCKSTAT_PREFIX}{protocol}_{field}", _FIELDS[field].format(protocol))


USED = gauge(f"{SOCKSTAT_PREFIX}sockets_used", "Sockets of all kinds in use.")

SOCKSTAT_CATALOGUE = (
    USED,
    *(sockstat_metric_of("TCP", field) for field in ("inuse", "orphan", "tw", "alloc", "mem", "mem_bytes")),
    *(sockstat_metric_of("UDP", field) for field in ("inuse", "mem", "mem_bytes")),
    *(sockstat_metric_of(protocol, "inuse") for protocol in ("UDPLITE", "RAW", "TCP6", "UDP6", "UDPLITE6", "RAW6")),
    *(sockstat_metric_of(protocol, field) for protocol in ("FRAG", "FRAG6") for field in ("inuse", "memory")),
)


def collect_sockstat(snapshot: Snapshot) -> Iterator[Family]:
    kernel = snapshot.readings.kernel
    if kernel is None or (sockets := kernel.sockets) is None:
        return
    yield USED.value(sockets.used)
    for protocol, fields in sockets.protocols.items():
        for field, value in fields.items():
            if field in _FIELDS:
                yield sockstat_metric_of(protocol, field).value(value)
        if "mem" in fields:
            yield sockstat_metric_of(protocol, "mem_bytes").value(fields["mem"] * sockets.page_bytes)


# node_hwmon_*: the sensors of the host. Kind and property of a sensor form the name; units become SI units.

HWMON_PREFIX = "node_hwmon_"
_LABELS = ("chip", "sensor")
_MILLI, _HWMON_MICRO = 1e-3, 1e-6

CHIP_NAMES = gauge(f"{HWMON_PREFIX}chip_names", "Name of a chip in its driver; always 1.", "chip", "chip_name")
SENSOR_LABEL = gauge(f"{HWMON_PREFIX}sensor_label", "Label of a sensor in its driver; always 1.", *_LABELS, "label")
BEEP_ENABLED = gauge(f"{HWMON_PREFIX}beep_enabled", "Beeping of a chip: 1 if enabled, else 0.", *_LABELS)
VRM = gauge(f"{HWMON_PREFIX}voltage_regulator_version", "Version of a chip's voltage regulator module.", *_LABELS)
UPDATE_INTERVAL = gauge(
    f"{HWMON_PREFIX}update_interval_seconds", "Interval between two updates of a chip in seconds.", *_LABELS
)


@cache
def hwmon_metric_of(kind: str, property: str, has_bare: bool = False) -> tuple[Metric, float]:
    """The metric of one property of a kind of sensor, and the factor from the driver's unit to ours.

    `has_bare`: the sensor also has a file without a property, so that its input needs a name of its own.
    """
    if property in ("", "input"):
        name = f"{HWMON_PREFIX}{kind}_input" if property and has_bare else f"{HWMON_PREFIX}{kind}"
    else:
        name = f"{HWMON_PREFIX}{kind}_{property}"
    unit, factor = _unit(kind, property)
    # Two properties may form the same name, and a name has one help.
    words = name.removeprefix(f"{HWMON_PREFIX}{kind}").replace("_", " ")
    help = f"Value of a sensor of kind {kind}{':' if words else ''}{words}."
    make = counter if kind == "energy" and unit else gauge
    return make(name + unit, help, *_LABELS), factor


def _unit(kind: str, property: str) -> tuple[str, float]:
    """The suffix of the name and the factor. States (fault, alarm, beep) have no unit."""
    if property in ("fault", "alarm"):
        return "", 1
    if property == "beep":
        return "_enabled", 1
    if kind == "power":
        if property == "accuracy":
            return "", _HWMON_MICRO
        interval = property in ("average_interval", "average_interval_min", "average_interval_max")
        return ("_seconds", _MILLI) if interval else ("_watt", _HWMON_MICRO)
    if kind == "fan":
        return ("_rpm", 1) if property in ("input", "min", "max", "target") else ("", 1)
    if kind == "temp" and property == "type":
        return "", 1
    return {
        "in": ("_volts", _MILLI),
        "cpu": ("_volts", _MILLI),
        "temp": ("_celsius", _MILLI),
        "curr": ("_amps", _MILLI),
        "energy": ("_joule_total", _HWMON_MICRO),
        "humidity": ("", _HWMON_MICRO),
    }.get(kind, ("", 1))


HWMON_CATALOGUE = (
    CHIP_NAMES,
    SENSOR_LABEL,
    *(
        hwmon_metric_of("temp", property)[0]
        for property in ("input", "max", "min", "crit", "crit_alarm", "alarm", "type")
    ),
    *(hwmon_metric_of("fan", property)[0] for property in ("input", "min", "alarm")),
    *(hwmon_metric_of("in", property)[0] for property in ("input", "min", "max")),
    *(hwmon_metric_of("power", property)[0] for property in ("input", "average", "average_interval", "cap")),
    hwmon_metric_of("curr", "input")[0],
    hwmon_metric_of("energy", "input")[0],
    hwmon_metric_of("humidity", "input")[0],
    hwmon_metric_of("pwm", "")[0],
    BEEP_ENABLED,
    VRM,
    UPDATE_INTERVAL,
)


def collect_hwmon(snapshot: Snapshot) -> list[Family]:
    hardware = snapshot.readings.hardware
    return [] if hardware is None else join_families(_chips(hardware.chips or ()))


def _chips(chips: Iterable[Chip]) -> Iterator[Family]:
    for chip in chips:
        if chip.name is not None:
            yield CHIP_NAMES.value(1, chip.id, chip.name)
        for sensor in chip.sensors:
            yield from _sensor(chip, sensor)


def _sensor(chip: Chip, sensor: Sensor) -> Iterator[Family]:
    if sensor.label is not None:
        yield SENSOR_LABEL.value(1, chip.id, sensor.name, sensor.label)
    bare = sensor.properties.get("")
    if sensor.kind == "beep_enable":
        yield BEEP_ENABLED.value(int(bare == 1), chip.id, sensor.name)
    elif sensor.kind == "vrm":
        yield VRM.value(bare, chip.id, sensor.name)
    elif sensor.kind == "update_interval":
        yield UPDATE_INTERVAL.value(None if bare is None else bare * _MILLI, chip.id, sensor.name)
    else:
        for property, value in sensor.properties.items():
            if property != "label":
                metric, factor = hwmon_metric_of(sensor.kind, property, bare is not None)
                yield metric.value(value * factor, chip.id, sensor.name)


# node_scrape_collector_*: the duration and the result of the last read of each collector.
#
# Collectors that share a read share its duration: cpu, stat and loadavg are one read of /proc.

DURATION = gauge(
    "node_scrape_collector_duration_seconds", "Duration of the last read of a collector in seconds.", "collector"
)
SUCCESS = gauge(
    "node_scrape_collector_success", "Result of the last read of a collector: 1 if it succeeded, else 0.", "collector"
)

SCRAPE_CATALOGUE = (DURATION, SUCCESS)

_BY_SOURCE = {
    "cpu": "cpu",
    "stat": "cpu",
    "loadavg": "cpu",
    "meminfo": "memory",
    "pressure": "pressure",
    "filesystem": "filesystems",
    "hwmon": "hardware",
    "textfile": "text_files",
}
_BY_KERNEL_PART = {
    "vmstat": "vmstat",
    "diskstats": "disks",
    "netdev": "links",
    "filefd": "file_handles",
    "conntrack": "conntrack",
    "sockstat": "sockets",
    "uname": "uname",
    "time": "clock",
    "timex": "clock_discipline",
    "netstat": "protocols",
    "softnet": "softnet",
    "netclass": "devices",
    "bonding": "bonds",
    "mdadm": "raids",
}


def collect_scrape(snapshot: Snapshot) -> Iterator[Family]:
    runs = dict(_runs(snapshot))
    yield DURATION.of(((name,), duration_s) for name, (duration_s, _) in runs.items() if duration_s is not None)
    yield SUCCESS.of(((name,), int(ok)) for name, (_, ok) in runs.items())


def _runs(snapshot: Snapshot) -> Iterator[tuple[str, tuple[float | None, bool]]]:
    """(collector, (duration, success)) of the collectors that have a source."""
    for collector, source in _BY_SOURCE.items():
        state = snapshot.sources.get(source)
        if state is not None:
            yield collector, (state.duration_s, state.up and _has_read(snapshot, collector))
    kernel = snapshot.readings.kernel
    if kernel is not None:
        for collector, part in _BY_KERNEL_PART.items():
            if (run := kernel.runs.get(part)) is not None:
                yield collector, (run.duration_s, not run.error)
    elif (state := snapshot.sources.get("kernel")) is not None:
        for collector in _BY_KERNEL_PART:
            yield collector, (state.duration_s, False)


def _has_read(snapshot: Snapshot, collector: str) -> bool:
    """A source that is up may lack the values of one collector."""
    cpu, hardware = snapshot.readings.cpu, snapshot.readings.hardware
    if collector == "loadavg":
        return cpu is not None and cpu.load_1m is not None
    if collector == "hwmon":
        return hardware is not None and hardware.chips is not None and not hardware.chips_failed
    return True


# node_exporter_build_info: the version of node_exporter whose vocabulary this is, and that of gpucommons.

# The version of node_exporter whose names, labels and units the dialect has.
NODE_EXPORTER_VERSION = "1.5.0"
_GO_NAMES = {"x86_64": "amd64", "aarch64": "arm64"}

BUILD_INFO = gauge(
    "node_exporter_build_info",
    "Version of node_exporter whose vocabulary this is, and of gpucommons as its revision; always 1.",
    *("version", "revision", "branch", "goversion", "goos", "goarch"),
)

EXPORTER_CATALOGUE = (BUILD_INFO,)


def collect_exporter(snapshot: Snapshot) -> Iterator[Family]:
    agent, kernel = snapshot.readings.agent, snapshot.readings.kernel
    if agent is not None and kernel is not None and (own := kernel.uname) is not None:
        # gpucommons is not compiled with Go: the label goversion is empty.
        system, architecture = own.sysname.lower(), _GO_NAMES.get(own.machine, own.machine)
        revision = f"gpucommons-{agent.version}"
        yield BUILD_INFO.value(1, NODE_EXPORTER_VERSION, revision, "gpucommons", "", system, architecture)


CATALOGUE = (
    *VMSTAT_CATALOGUE,
    *STAT_CATALOGUE,
    *UNAME_CATALOGUE,
    *TIME_CATALOGUE,
    *FILEFD_CATALOGUE,
    *PRESSURE_CATALOGUE,
    *NF_CONNTRACK_CATALOGUE,
    *SOCKSTAT_CATALOGUE,
    *HWMON_CATALOGUE,
    *SCRAPE_CATALOGUE,
    *EXPORTER_CATALOGUE,
)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    yield from collect_vmstat(snapshot)
    yield from collect_stat(snapshot)
    yield from collect_uname(snapshot)
    yield from collect_time(snapshot)
    yield from collect_filefd(snapshot)
    yield from collect_pressure(snapshot)
    yield from collect_nf_conntrack(snapshot)
    yield from collect_sockstat(snapshot)
    yield from collect_hwmon(snapshot)
    yield from collect_scrape(snapshot)
    yield from collect_exporter(snapshot)
