"""The GPUs of a node at an instant, and how active one was over a chosen time.

A GPU is identified by its UUID; a missing reading is None.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

from gpucommons.model.process_identity import ProcessKey

# The GPUs of a node at an instant. A GPU is identified by its UUID; a missing reading is None, never 0.
#
# Numbers keep the driver's resolution (percent, watts from milliwatts, millijoules): the dialects convert them.

THROTTLE_REASONS: tuple[tuple[int, str], ...] = (
    (0x001, "gpu_idle"),
    (0x002, "applications_clocks_setting"),
    (0x004, "sw_power_cap"),
    (0x008, "hw_slowdown"),
    (0x010, "sync_boost"),
    (0x020, "sw_thermal_slowdown"),
    (0x040, "hw_thermal_slowdown"),
    (0x080, "hw_power_brake_slowdown"),
    (0x100, "display_clock_setting"),
    (0x200, "board_limit"),
    (0x400, "reliability"),
)


# The length of the windows of XIDs and clock samples, and the interval between samples of the throttle mask: that of
# dcgm-exporter by default, so that counts of samples are comparable.
RECENT_S = 3600
CLOCK_SAMPLE_EVERY_S = 30.0


@dataclass(frozen=True, slots=True)
class GpuIdentity:
    """What does not change while the driver is loaded. The index may change when a GPU is added or lost."""

    uuid: str
    index: int
    name: str
    pci_bus_id: str
    minor: int | None = None
    serial: str | None = None
    architecture: str | None = None
    compute_capability: str | None = None
    vbios_version: str | None = None
    cores: int | None = None
    power_limit_min_watts: float | None = None
    power_limit_max_watts: float | None = None
    power_limit_default_watts: float | None = None
    temperature_slowdown_celsius: int | None = None
    temperature_shutdown_celsius: int | None = None
    clock_sm_max_mhz: int | None = None
    clock_memory_max_mhz: int | None = None
    clock_graphics_max_mhz: int | None = None
    pcie_generation_max: int | None = None
    pcie_width_max: int | None = None
    gpm_supported: bool = False
    brand: str | None = None
    # Of the PCI configuration space: device and vendor of the board's maker.
    pci_subsystem_id: int | None = None
    # Versions of the objects in the board's InfoROM, by name: image, oem, ecc, power.
    inforom_versions: tuple[tuple[str, str], ...] = ()

    @property
    def device(self) -> str:
        """The name of the device file, such as nvidia0."""
        return "" if self.minor is None else f"nvidia{self.minor}"


class GpuReadings(NamedTuple):
    """What changes. A NamedTuple, not a dataclass: each pass makes one per GPU from a list in this order.

    `memory_used_bytes` excludes what the driver reserves if the driver reports that separately (`memory_reserved_bytes`
    is then set), so that used + reserved + free = total.
    """

    utilization_percent: int | None = None
    memory_utilization_percent: int | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    # What was set; the limit in force (power_limit_watts) may be lower.
    power_limit_set_watts: float | None = None
    temperature_celsius: int | None = None
    memory_temperature_celsius: int | None = None
    fan_percent: int | None = None
    clock_graphics_mhz: int | None = None
    clock_sm_mhz: int | None = None
    clock_memory_mhz: int | None = None
    clock_video_mhz: int | None = None
    encoder_percent: int | None = None
    decoder_percent: int | None = None
    jpeg_percent: int | None = None
    ofa_percent: int | None = None
    performance_state: int | None = None
    throttle_mask: int | None = None
    energy_millijoules: int | None = None
    pcie_tx_bytes_per_s: int | None = None
    pcie_rx_bytes_per_s: int | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    pcie_replays: int | None = None
    ecc_corrected_volatile: int | None = None
    ecc_uncorrected_volatile: int | None = None
    ecc_corrected_aggregate: int | None = None
    ecc_uncorrected_aggregate: int | None = None
    remapped_rows_corrected: int | None = None
    remapped_rows_uncorrected: int | None = None
    remapped_rows_pending: int | None = None
    remapped_rows_failed: int | None = None
    power_violation_ns: int | None = None
    thermal_violation_ns: int | None = None
    sync_boost_violation_ns: int | None = None
    board_limit_violation_ns: int | None = None
    low_utilization_violation_ns: int | None = None
    reliability_violation_ns: int | None = None
    retired_pages_single_bit: int | None = None
    retired_pages_double_bit: int | None = None
    retired_pages_pending: int | None = None
    nvlinks_active: int | None = None
    nvlink_tx_kibibytes: int | None = None
    nvlink_rx_kibibytes: int | None = None
    nvlink_replays: int | None = None
    nvlink_recoveries: int | None = None
    nvlink_crc_flit_errors: int | None = None
    nvlink_crc_data_errors: int | None = None
    recovery_action: int | None = None
    persistence_mode: int | None = None
    compute_mode: int | None = None
    vgpu_licensed: int | None = None

    @property
    def memory_not_free_bytes(self) -> int | None:
        """What older NVML versions report as used: all memory that is not free, including the driver's reserve."""
        total, free = self.memory_total_bytes, self.memory_free_bytes
        return None if total is None or free is None else total - free

    @property
    def throttle_reasons(self) -> tuple[str, ...] | None:
        mask = self.throttle_mask
        return None if mask is None else tuple(name for bit, name in THROTTLE_REASONS if mask & bit)


class NvLinkRates(NamedTuple):
    """Data sent and received over NVLink, averaged since the previous reading: of all links, and by link number."""

    total_kibibytes_per_s: float | None = None
    link_kibibytes_per_s: Mapping[int, float] = MappingProxyType({})


class ClockSample(NamedTuple):
    """The throttle mask at one instant."""

    wall_s: float
    throttle_mask: int


class GpmReading(NamedTuple):
    """Activity over the last second, as ratios; traffic in bytes per second. Hopper and newer."""

    graphics_ratio: float | None = None
    sm_ratio: float | None = None
    sm_occupancy_ratio: float | None = None
    tensor_ratio: float | None = None
    fp64_ratio: float | None = None
    fp32_ratio: float | None = None
    fp16_ratio: float | None = None
    integer_ratio: float | None = None
    tensor_double_ratio: float | None = None
    tensor_half_ratio: float | None = None
    tensor_integer_ratio: float | None = None
    dram_ratio: float | None = None
    pcie_tx_bytes_per_s: float | None = None
    pcie_rx_bytes_per_s: float | None = None
    nvlink_tx_bytes_per_s: float | None = None
    nvlink_rx_bytes_per_s: float | None = None


class GpuProcess(NamedTuple):
    """One process on one GPU or MIG device.

    `key` is None if no process with this pid was found, `used_memory_bytes` if the driver does not report it, and a
    utilisation if the driver has no fresh and plausible sample.
    """

    pid: int
    key: ProcessKey | None
    kind: str
    used_memory_bytes: int | None
    sm_percent: int | None = None
    memory_percent: int | None = None
    encoder_percent: int | None = None
    decoder_percent: int | None = None
    gpu_instance_id: int | None = None
    compute_instance_id: int | None = None


class MigMemory(NamedTuple):
    total_bytes: int
    used_bytes: int
    free_bytes: int
    reserved_bytes: int | None


class MigInstance(NamedTuple):
    """One MIG device: a compute instance within a GPU instance.

    Memory, GPM and placement belong to the GPU instance and are common to its compute instances: sum them over
    `Gpu.gpu_instances()`, not over `Gpu.mig`.
    """

    uuid: str
    gpu_instance_id: int
    compute_instance_id: int
    profile: str
    gpu_instance_slices: int
    compute_slices: int
    multiprocessors: int
    memory_bytes: int
    placement_start: int | None = None
    placement_size: int | None = None
    memory: MigMemory | None = None
    gpm: GpmReading | None = None

    @property
    def gpu_instance_profile(self) -> str:
        """The profile of the GPU instance: `3g.71gb` of a `1c.3g.71gb`."""
        head, dot, rest = self.profile.partition(".")
        return rest if dot and head.endswith("c") else self.profile

    @property
    def is_measured(self) -> bool:
        """Whether it has any reading: if not, the dcgm dialect has no series for its id."""
        return self.memory is not None or self.gpm is not None


class XidRecord(NamedTuple):
    """The XID errors of one GPU since the agent started. Unless it is `watched`, zero errors means unknown.

    `recent` counts those of the last hour, by second of the wall clock and code.
    """

    watched: bool = False
    counts: Mapping[int, int] = {}
    last_code: int | None = None
    last_wall_s: float | None = None
    events: Mapping[str, int] = {}
    recent: Mapping[tuple[int, int], int] = {}


class XidLine(NamedTuple):
    """A line of the kernel log about an XID. `pci` is as in the line: 0000:c1:00. `pid` is None and `program` empty
    where the driver does not know the process. `number` counts the lines since the agent started.
    """

    number: int
    wall_s: float
    pci: str
    code: int
    pid: int | None
    program: str


class KernelLogReading(NamedTuple):
    """The newest lines about XIDs."""

    lines: tuple[XidLine, ...] = ()


class XidProgram(NamedTuple):
    """A program that an XID hit. `is_certain`: the kernel log names it; else it was the only one on the GPU.

    `user` is the name that is billed, empty where it is not known. `number` counts the programs since the start.
    """

    number: int
    gpu_uuid: str
    gpu_index: int
    code: int
    wall_s: float
    pid: int
    program: str
    user: str
    uid: int | None
    is_certain: bool


class XidProgramsReading(NamedTuple):
    """Those of the last hour. `hidden` are XIDs, as GPU and code, that hit a program that the viewer may not see."""

    programs: tuple[XidProgram, ...] = ()
    hidden: tuple[tuple[str, int], ...] = ()


_NO_READINGS = GpuReadings()


class Gpu(NamedTuple):
    """One GPU, present or lost: `up` is False once it has fallen off the bus; then it has no readings."""

    identity: GpuIdentity
    up: bool
    since_wall_s: float
    down_reason: str = ""
    readings: GpuReadings = _NO_READINGS
    gpm: GpmReading | None = None
    processes: tuple[GpuProcess, ...] | None = None
    mig_enabled: bool | None = None
    mig: tuple[MigInstance, ...] = ()
    xid: XidRecord = XidRecord()
    # The number of compute slices while MIG is enabled: 7 on an H200, 4 on an A30.
    mig_slices: int | None = None
    # MIG devices that the driver lists without ids; they are not in `mig`.
    mig_without_id: int = 0
    nvlink_rates: NvLinkRates | None = None
    # Throttle masks of the last hour, one every CLOCK_SAMPLE_EVERY_S, the oldest first.
    clock_samples: tuple[ClockSample, ...] = ()

    def gpu_instances(self) -> Iterator[MigInstance]:
        """One MIG device of each GPU instance, for values that belong to the GPU instance as a whole."""
        seen: set[int] = set()
        for instance in self.mig:
            if instance.gpu_instance_id not in seen:
                seen.add(instance.gpu_instance_id)
                yield instance

    @property
    def use_ratio(self) -> float | None:
        """How busy it is. NVML has no utilisation of a GPU with MIG: there it is the activity of its GPU instances,
        each weighed by its slices."""
        if not self.mig_enabled:
            percent = self.readings.utilization_percent
            return None if percent is None else percent / 100
        measured = [
            (instance.gpu_instance_slices, instance.gpm.graphics_ratio)
            for instance in self.gpu_instances()
            if instance.gpm is not None and instance.gpm.graphics_ratio is not None
        ]
        if not measured or not self.mig_slices:
            return None
        return min(1.0, sum(slices * ratio for slices, ratio in measured) / self.mig_slices)

    @property
    def pcie_tx_bytes_per_s(self) -> float | None:
        return self.readings.pcie_tx_bytes_per_s if self.gpm is None else self.gpm.pcie_tx_bytes_per_s

    @property
    def pcie_rx_bytes_per_s(self) -> float | None:
        return self.readings.pcie_rx_bytes_per_s if self.gpm is None else self.gpm.pcie_rx_bytes_per_s


class LaneMove(NamedTuple):
    """A call that was moved because of its cost, and the lane that it was moved to."""

    uuid: str
    call: str
    lane: str


class GpuReading(NamedTuple):
    """One pass over all GPUs: present ones by index, then lost ones. Counts are since the agent started."""

    driver_version: str
    nvml_version: str
    cuda_version: str
    gpus: tuple[Gpu, ...]
    expected: int
    present: int
    connections: int = 1
    lane_moves: Mapping[LaneMove, int] = {}
    slow_calls: tuple[LaneMove, ...] = ()
    samples_dropped: Mapping[tuple[str, str], int] = {}
    call_failures: Mapping[tuple[str, str], int] = {}
    # NVML's state of the NVLink connection of each pair of GPUs, by their UUIDs, when the session began; 0: it works.
    peer_links: Mapping[tuple[str, str], int] = {}
    # PCI addresses of NVIDIA GPUs that the driver does not list.
    unlisted: tuple[str, ...] = ()

    def present_gpus(self) -> Iterator[Gpu]:
        return (gpu for gpu in self.gpus if gpu.up)


class AllocationRatios(NamedTuple):
    """One ratio for every GPU, ratios by GPU index, or both: then the one by index takes precedence."""

    everywhere: float | None = None
    by_gpu_index: Mapping[int, float] = {}

    def of(self, gpu_index: int) -> float | None:
        return self.by_gpu_index.get(gpu_index, self.everywhere)


class AllocationRatioReading(NamedTuple):
    """The last valid ratios; None if there were none. `problem` is one line, empty if the file is valid."""

    ratios: AllocationRatios | None
    problem: str = ""


# How active a GPU was over a chosen time: what the scheduler learns about the programs that ran in it.


class GpuActivity(NamedTuple):
    """Shares of the time in which the SMs, the tensor pipes and the DRAM interface were active, 0 to 1; and in which
    any kernel ran (`busy`). All but the first are None where the GPU does not report them."""

    sm: float
    tensor: float | None = None
    dram: float | None = None
    busy: float | None = None


class ActivityMeasurement(NamedTuple):
    """The activity of one GPU, or MIG device, between two moments of the monotonic clock.

    `token` is what the measurement was begun with.
    """

    gpu_uuid: str
    token: object
    activity: GpuActivity
    begin_s: float
    end_s: float


# Less activity than this is idleness.
IDLE_ACTIVITY: Final = 0.005


class DeviceActivity(NamedTuple):
    """Shares of time in which the SMs, the tensor pipes, the DRAM interface and any part of the device were active.

    `busy` is None where it is not measured."""

    sm: float
    tensor: float = 0.0
    dram: float = 0.0
    busy: float | None = None

    @property
    def work(self) -> tuple[float, float, float]:
        """The activities that are additive in progress."""
        return self.sm, self.tensor, self.dram

    def without(self, others: Iterable["DeviceActivity"]) -> "DeviceActivity":
        """What is left of it when the others' activity is taken away."""
        rows = list(others)
        sm, tensor, dram = (max(0.0, own - sum(row.work[m] for row in rows)) for m, own in enumerate(self.work))
        busy = None if self.busy is None else max(0.0, self.busy - sum(row.busy or 0.0 for row in rows))
        return DeviceActivity(sm, tensor, dram, busy)

    @property
    def is_idle(self) -> bool:
        return max(self.sm, self.tensor, self.dram, self.busy or 0.0) < IDLE_ACTIVITY
