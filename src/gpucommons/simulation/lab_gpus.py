"""The GPUs of scenario lab: eight H200, two of them split by MIG, with the lab's jobs on them.

A reading is a function of the seconds since the start, a seed, and the load: what the jobs do. The use of a GPU is that
of its jobs and a remainder without an owner, as on a real GPU.
"""

import math
import random
from collections.abc import Iterable
from itertools import permutations

from gpucommons.model.gpu import (
    CLOCK_SAMPLE_EVERY_S,
    RECENT_S,
    ClockSample,
    GpmReading,
    Gpu,
    GpuIdentity,
    GpuProcess,
    GpuReading,
    GpuReadings,
    MigInstance,
    MigMemory,
    NvLinkRates,
    XidRecord,
)
from gpucommons.simulation.day import wobble
from gpucommons.simulation.lab_jobs import FixedLoad, JobUse, LabJob, LabLoad, total_use

GPUS = 8
SEED = 20
DRIVER_VERSION, NVML_VERSION, CUDA_VERSION = "580.159.04", "13.580.159.04", "13.0"
MEMORY_BYTES = 150_754_820_096
RESERVED_BYTES = 644_939_776
_CONTEXT_BYTES = 480 * 2**20
_IDLE_WATTS, _LIMIT_WATTS = 83.0, 700.0
_GIB = 2**30
_SLICES = 7
_IDLE, _POWER_CAP = 0x1, 0x4
_NVLINKS = 18
# What a training job on several GPUs sends over the links of each; it receives the same amount.
_NVLINK_KIB_PER_S = 45_000_000

# GPU instance id, profile, slices, GiB, start and size in the GPU's eight memory slices
_LAYOUTS: dict[int, tuple[tuple[int, str, int, float, int, int], ...]] = {
    6: (
        (1, "3g.71gb", 3, 69.5, 0, 4),
        (3, "2g.35gb", 2, 34.6, 4, 2),
        (5, "1g.18gb", 1, 16.0, 6, 1),
        (6, "1g.18gb", 1, 16.0, 7, 1),
    ),
    7: tuple((7 + n, "1g.18gb", 1, 16.0, n, 1) for n in range(7)),
}


def _uuid(dice: random.Random, prefix: str) -> str:
    digits = f"{dice.getrandbits(128):032x}"
    return f"{prefix}-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _identity(index: int, uuid: str) -> GpuIdentity:
    return GpuIdentity(
        uuid=uuid,
        index=index,
        name="NVIDIA H200",
        pci_bus_id=f"00000000:{0x18 + 0x11 * index:02X}:00.0",
        minor=index,
        serial=str(1_654_024_031_800 + index),
        architecture="hopper",
        compute_capability="9.0",
        vbios_version="96.00.A5.00.1A",
        cores=16_896,
        power_limit_min_watts=200.0,
        power_limit_max_watts=_LIMIT_WATTS,
        power_limit_default_watts=_LIMIT_WATTS,
        temperature_slowdown_celsius=89,
        temperature_shutdown_celsius=95,
        clock_sm_max_mhz=1980,
        clock_memory_max_mhz=3201,
        clock_graphics_max_mhz=1980,
        pcie_generation_max=5,
        pcie_width_max=16,
        gpm_supported=True,
        brand="Nvidia",
        pci_subsystem_id=0x18BE10DE,
        inforom_versions=(("image", "G520.0282.02.02"), ("oem", "2.1"), ("ecc", "7.16")),
    )


class LabGpus:
    """`at` simulates one pass. The same seed, load and second give the same reading, whatever was read before."""

    def __init__(self, started_wall_s: float, seed: int = SEED, load: LabLoad | None = None) -> None:
        dice = random.Random(seed)
        self.started_wall_s = started_wall_s
        self._load = load or FixedLoad()
        self.identities = tuple(_identity(index, _uuid(dice, "GPU")) for index in range(GPUS))
        self.mig_uuids = {
            (gpu, layout[0]): _uuid(dice, "MIG") for gpu, layouts in _LAYOUTS.items() for layout in layouts
        }
        self._phase = [dice.random() for _ in range(GPUS)]
        self._first_joules = [1e6 * (2 + dice.random()) for _ in range(GPUS)]
        self._energy = [(0, 0.0)] * GPUS
        self._nvlink_rates = [_nvlink_rates(2.0 * self._nvlink_kib_per_s(index)) for index in range(GPUS)]
        self._clock_samples: dict[int, tuple[int, tuple[ClockSample, ...]]] = {}

    def free_bytes(self, uuid: str, elapsed_s: float) -> int | None:
        """Of a GPU or a MIG device; None where there is no such device."""
        for index, identity in enumerate(self.identities):
            if identity.uuid == uuid:
                return MEMORY_BYTES - RESERVED_BYTES - self._used_bytes(self._jobs(index), elapsed_s)
            memory = next(
                (instance.memory for instance in self._instances(index, elapsed_s) if instance.uuid == uuid), None
            )
            if memory is not None:
                return memory.free_bytes
        return None

    def place(self, uuid: str) -> tuple[int, int | None] | None:
        """The index of the GPU and the GPU instance of this device."""
        whole = next((index for index, identity in enumerate(self.identities) if identity.uuid == uuid), None)
        return (
            next((place for place, mig_uuid in self.mig_uuids.items() if mig_uuid == uuid), None)
            if whole is None
            else (
                whole,
                None,
            )
        )

    def at(self, elapsed_s: float) -> GpuReading:
        return GpuReading(
            driver_version=DRIVER_VERSION,
            nvml_version=NVML_VERSION,
            cuda_version=CUDA_VERSION,
            gpus=tuple(self._gpu(index, elapsed_s) for index in range(GPUS)),
            expected=GPUS,
            present=GPUS,
            peer_links={(gpu.uuid, two.uuid): 0 for gpu, two in permutations(self.identities, 2)},
        )

    def _jobs(self, index: int) -> list[LabJob]:
        return [job for job in self._load.jobs() if job.gpu == index]

    def _gpu(self, index: int, elapsed_s: float) -> Gpu:
        split = index in _LAYOUTS
        use = self._use(index, elapsed_s)
        return Gpu(
            identity=self.identities[index],
            up=True,
            since_wall_s=self.started_wall_s,
            readings=self._readings(index, elapsed_s, use.busy),
            # As in the real source, GPM requires two samples: the first pass has none.
            gpm=None if elapsed_s <= 0 else self._gpm_of_board(index, use, elapsed_s),
            processes=tuple(self._process(job, elapsed_s, split) for job in self._jobs(index)),
            mig_enabled=split,
            mig=self._instances(index, elapsed_s),
            xid=XidRecord(watched=True),
            mig_slices=_SLICES if split else None,
            nvlink_rates=None if elapsed_s <= 0 else self._nvlink_rates[index],
            clock_samples=self._clocks(index, elapsed_s),
        )

    def _use(self, index: int, elapsed_s: float) -> JobUse:
        """Of the whole GPU; MIG instances are weighted by their slices of seven."""
        slices = {layout[0]: layout[2] for layout in _LAYOUTS.get(index, ())}
        uses = []
        for job in self._jobs(index):
            part = 1.0 if job.gpu_instance_id is None else slices[job.gpu_instance_id] / _SLICES
            uses.append(JobUse(*(part * value for value in self._load.use(job, elapsed_s))))
        return total_use(uses)

    def _busy(self, index: int, elapsed_s: float) -> float:
        return self._use(index, elapsed_s).busy

    def _watts(self, index: int, elapsed_s: float) -> float:
        busy = self._busy(index, elapsed_s)
        return min(
            _IDLE_WATTS + 640 * math.pow(busy, 0.9) + 4 * wobble(elapsed_s, 19, self._phase[index]), _LIMIT_WATTS
        )

    def _clocks(self, index: int, elapsed_s: float) -> tuple[ClockSample, ...]:
        """One sample for each half minute of the last hour; computed only when there is a new one."""
        newest = math.floor(max(elapsed_s, 0.0) / CLOCK_SAMPLE_EVERY_S)
        sample = self._clock_samples.get(index)
        if sample is None or sample[0] != newest:
            oldest = max(0, newest - round(RECENT_S / CLOCK_SAMPLE_EVERY_S) + 1)
            times_s = [number * CLOCK_SAMPLE_EVERY_S for number in range(oldest, newest + 1)]
            samples = tuple(
                ClockSample(self.started_wall_s + t, _throttle_mask(self._watts(index, t), self._busy(index, t)))
                for t in times_s
            )
            sample = self._clock_samples[index] = (newest, samples)
        return sample[1]

    def _nvlink_kib_per_s(self, index: int) -> int:
        """In one direction, over all links."""
        return _NVLINK_KIB_PER_S if _trains(self._jobs(index)) else 0

    def _gpm_of_board(self, index: int, use: JobUse, elapsed_s: float) -> GpmReading:
        nvlink = 1024.0 * self._nvlink_kib_per_s(index)
        gpm = _gpm(use, elapsed_s, self._phase[index])
        return gpm._replace(nvlink_tx_bytes_per_s=nvlink, nvlink_rx_bytes_per_s=nvlink)

    def _joules(self, index: int, elapsed_s: float) -> float:
        """The power integrated second by second from the start, so that gaps between reads do not matter."""
        whole = math.floor(elapsed_s)
        seconds, joules = self._energy[index]
        if seconds > whole:
            seconds, joules = 0, 0.0
        for second in range(seconds, whole):
            joules += self._watts(index, second + 0.5)
        self._energy[index] = (whole, joules)
        return self._first_joules[index] + joules + (elapsed_s - whole) * self._watts(index, whole + 0.5)

    def _readings(self, index: int, elapsed_s: float, busy: float) -> GpuReadings:
        split = index in _LAYOUTS
        watts = self._watts(index, elapsed_s)
        mask = _throttle_mask(watts, busy)
        celsius = 31 + 0.047 * watts + 2 * self._phase[index]
        clock = 345 if busy == 0 else 1485 if mask == _POWER_CAP else 1980
        used = self._used_bytes(self._jobs(index), elapsed_s)
        return GpuReadings(
            utilization_percent=None if split else round(100 * busy),
            memory_utilization_percent=None if split else round(31 * busy),
            memory_total_bytes=MEMORY_BYTES,
            memory_used_bytes=used,
            memory_free_bytes=MEMORY_BYTES - RESERVED_BYTES - used,
            memory_reserved_bytes=RESERVED_BYTES,
            power_watts=round(watts, 3),
            power_limit_watts=_LIMIT_WATTS,
            power_limit_set_watts=_LIMIT_WATTS,
            temperature_celsius=round(celsius),
            memory_temperature_celsius=round(celsius + 7),
            clock_graphics_mhz=clock,
            clock_sm_mhz=clock,
            clock_memory_mhz=3201,
            clock_video_mhz=min(clock, 1515),
            encoder_percent=0,
            decoder_percent=0,
            jpeg_percent=0,
            ofa_percent=0,
            performance_state=0,
            throttle_mask=mask,
            energy_millijoules=round(1000 * self._joules(index, elapsed_s)),
            pcie_generation=5,
            pcie_width=16,
            pcie_replays=0,
            ecc_corrected_volatile=0,
            ecc_uncorrected_volatile=0,
            ecc_corrected_aggregate=0,
            ecc_uncorrected_aggregate=0,
            remapped_rows_corrected=0,
            remapped_rows_uncorrected=0,
            remapped_rows_pending=0,
            remapped_rows_failed=0,
            # GPUs that train all day are at their power cap part of the time.
            power_violation_ns=round(4e7 * elapsed_s) if _trains(self._jobs(index)) else 0,
            thermal_violation_ns=0,
            sync_boost_violation_ns=0,
            board_limit_violation_ns=0,
            low_utilization_violation_ns=0 if _trains(self._jobs(index)) else round(6e8 * elapsed_s),
            reliability_violation_ns=0,
            nvlinks_active=_NVLINKS,
            nvlink_tx_kibibytes=round(self._nvlink_kib_per_s(index) * elapsed_s),
            nvlink_rx_kibibytes=round(self._nvlink_kib_per_s(index) * elapsed_s),
            nvlink_replays=0,
            nvlink_recoveries=0,
            nvlink_crc_flit_errors=0,
            nvlink_crc_data_errors=0,
            recovery_action=0,
            persistence_mode=1,
            compute_mode=0,
            vgpu_licensed=0,
        )

    def _used_bytes(self, jobs: Iterable[LabJob], elapsed_s: float) -> int:
        held = [self._load.memory_bytes(job, elapsed_s) for job in jobs]
        # The driver's context of a parked job is gone as well.
        return sum(amount + _CONTEXT_BYTES for amount in held if amount)

    def _process(self, job: LabJob, elapsed_s: float, split: bool) -> GpuProcess:
        sm = round(100 * self._load.use(job, elapsed_s).busy)
        has_samples = not split and elapsed_s > 0
        return GpuProcess(
            pid=job.key.pid,
            key=job.key,
            kind=job.kind,
            used_memory_bytes=self._load.memory_bytes(job, elapsed_s),
            sm_percent=sm if has_samples else None,
            memory_percent=sm // 3 if has_samples else None,
            encoder_percent=0 if has_samples else None,
            decoder_percent=0 if has_samples else None,
            gpu_instance_id=job.gpu_instance_id,
            compute_instance_id=None if job.gpu_instance_id is None else 0,
        )

    def _instances(self, index: int, elapsed_s: float) -> tuple[MigInstance, ...]:
        return tuple(self._instance(index, elapsed_s, *layout) for layout in _LAYOUTS.get(index, ()))

    def _instance(
        self, index: int, elapsed_s: float, gi: int, profile: str, slices: int, gib: float, start: int, size: int
    ) -> MigInstance:
        total = int(gib * _GIB)
        jobs = [job for job in self._jobs(index) if job.gpu_instance_id == gi]
        used = self._used_bytes(jobs, elapsed_s)
        use = total_use([self._load.use(job, elapsed_s) for job in jobs])
        return MigInstance(
            uuid=self.mig_uuids[(index, gi)],
            gpu_instance_id=gi,
            compute_instance_id=0,
            profile=profile,
            gpu_instance_slices=slices,
            compute_slices=slices,
            multiprocessors=16 * slices,
            memory_bytes=total,
            placement_start=start,
            placement_size=size,
            memory=MigMemory(total, used, total - used, 0),
            gpm=None if elapsed_s <= 0 else _gpm(use, elapsed_s, gi),
        )


def _throttle_mask(watts: float, busy: float) -> int:
    return _POWER_CAP if watts > 0.97 * _LIMIT_WATTS else 0 if busy else _IDLE


def _nvlink_rates(kib_per_s: float) -> NvLinkRates:
    return NvLinkRates(kib_per_s, dict.fromkeys(range(_NVLINKS), kib_per_s / _NVLINKS))


def _trains(jobs: list[LabJob]) -> bool:
    return any(job.gpu_instance_id is None and job.by_night > 0.9 for job in jobs)


def _gpm(use: JobUse, elapsed_s: float, offset: float) -> GpmReading:
    unrest = 1 + 0.05 * wobble(elapsed_s, 11, offset)
    busy = use.busy
    return GpmReading(
        graphics_ratio=busy,
        sm_ratio=use.sm,
        sm_occupancy_ratio=0.2 * busy,
        tensor_ratio=use.tensor,
        fp64_ratio=0.0,
        fp32_ratio=0.08 * busy,
        fp16_ratio=0.03 * busy,
        integer_ratio=0.06 * busy,
        tensor_double_ratio=0.0,
        tensor_half_ratio=0.97 * use.tensor,
        tensor_integer_ratio=0.0,
        dram_ratio=use.dram,
        pcie_tx_bytes_per_s=(2e6 + 9e8 * busy) * unrest,
        pcie_rx_bytes_per_s=(1e6 + 2.1e9 * busy) * unrest,
    )
