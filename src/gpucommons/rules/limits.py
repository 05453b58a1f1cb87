"""What limits a running program now, in one sentence: the answer to "why is it slow?". Pure.

The first of these that applies, in this order: its memory is not on the GPU; its quota; it has been waiting for its
turn for seconds; the GPU is slowed by heat or a fault; other owners use the GPU; the GPU's power limit; the program
does not keep the GPU busy, and its CPU, a disk or neither is the reason; the memory bandwidth; PCIe; the GPU itself.

Programs in turns change places several times a second. Whether one waits at the instant of the snapshot is chance: what
limits it are the others. The power limit comes after them: it costs a few percent, and a GPU that several keep busy is
often at it.

Every number is one that the snapshot has. Where a reading is missing, its question is left out, never guessed.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from gpucommons.base.text import qualified_name
from gpucommons.model.gpu import GpmReading, Gpu, MigInstance
from gpucommons.model.names import slots_by_place
from gpucommons.model.ownership import WHOLE_SM, OwnerKind, Place, ProcessShare
from gpucommons.model.sharing import ClientSharing, ParkedReading, SharingReading, WaitReason
from gpucommons.model.snapshot import Snapshot
from gpucommons.rules.wait_reasons import wait_sentence

# A program that uses the GPU for less than this does not keep it busy.
_BUSY_RATIO: Final = 0.8
# Other owners that use less than this are not the reason.
_OTHERS_RATIO: Final = 0.1
_IDLE_RATIO: Final = 0.01
_BANDWIDTH_RATIO: Final = 0.7
_PCIE_RATIO: Final = 0.7
_QUOTA_RATIO: Final = 0.9
# Bytes a second of one lane in one direction, by generation.
_LANE_BYTES_PER_S: Final[Mapping[int, float]] = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
_HEAT: Final = ("sw_thermal_slowdown", "hw_thermal_slowdown")
_HARDWARE: Final = ("hw_slowdown", "hw_power_brake_slowdown")
_POWER: Final = "sw_power_cap"
_NAMED: Final = 2


class LimitKind(StrEnum):
    PARKED = "parked"
    QUOTA = "quota"
    TURN = "turn"
    HEAT = "heat"
    POWER = "power"
    HARDWARE = "hardware"
    SHARED = "shared"
    CPU = "cpu"
    DISK = "disk"
    IDLE = "idle"
    BANDWIDTH = "bandwidth"
    PCIE = "pcie"
    GPU = "gpu"


class ProgramLimit(NamedTuple):
    kind: LimitKind
    sentence: str


class _Program(NamedTuple):
    """One process on one GPU or MIG device, and what the snapshot has about both.

    `sm_ratio` and `others` are parts of the GPU, or of the MIG device where it has one.
    """

    share: ProcessShare
    gpu: Gpu | None
    sm_ratio: float | None
    slot: str
    others: Mapping[str, float]
    client: ClientSharing | None
    parked: ParkedReading | None
    on_core: bool | None
    on_disk: bool | None

    @property
    def gpm(self) -> GpmReading | None:
        """The measured activity of its GPU or MIG device."""
        if self.gpu is None or not self.gpu.mig_enabled:
            return None if self.gpu is None else self.gpu.gpm
        instance = _gpu_instance(self.gpu, self.share.place)
        return None if instance is None else instance.gpm


def limits_of(snapshot: Snapshot, shares: Iterable[ProcessShare]) -> list[ProgramLimit | None]:
    """What limits each of these processes; None where too little is known."""
    readings = snapshot.readings
    gpus = {gpu.identity.uuid: gpu for gpu in readings.gpus.gpus} if readings.gpus else {}
    slots = slots_by_place(gpus.values())
    everything = readings.attribution.processes if readings.attribution else ()
    by_place: dict[object, list[ProcessShare]] = {}
    for share in everything:
        by_place.setdefault(share.place, []).append(share)
    clients, parked = _by_pid(readings.sharing)
    trees = readings.processes.trees if readings.processes else None
    scales = {place: _sm_scale(gpus.get(place.gpu_uuid), place) for place in {share.place for share in everything}}
    return [
        _limit(
            _Program(
                share,
                gpus.get(share.place.gpu_uuid),
                _sm_ratio(share, scales.get(share.place)),
                slots.get(share.place) or str(share.place.gpu_index),
                _others(share, by_place.get(share.place, ()), scales.get(share.place)),
                clients.get(share.pid),
                parked.get(share.pid),
                None if trees is None else share.pid in trees.on_core,
                None if trees is None else share.pid in trees.on_disk,
            )
        )
        for share in shares
    ]


def _by_pid(sharing: SharingReading | None) -> tuple[dict[int, ClientSharing], dict[int, ParkedReading]]:
    if sharing is None:
        return {}, {}
    clients = {pid: client for client in sharing.clients for pid in (client.pid, *client.processes)}
    programs = () if sharing.parking is None else sharing.parking.programs
    return clients, {pid: program for program in programs for pid in program.pids}


def _owner(share: ProcessShare) -> str:
    """The user; of a pod, whose processes often run as root, the pod."""
    owner, user = share.owner, share.workload.user
    if owner is not None and (owner.kind is OwnerKind.POD or not user):
        return qualified_name(owner.namespace, owner.name)
    return user or "an unknown owner"


def _gpu_instance(gpu: Gpu, place: Place) -> MigInstance | None:
    return next(
        (instance for instance in gpu.gpu_instances() if instance.gpu_instance_id == place.gpu_instance_id), None
    )


def _sm_scale(gpu: Gpu | None, place: Place) -> float | None:
    """From a part of the GPU to a part of the device: SM time of MIG devices is weighed by their slices.

    None where the GPU instance is not known.
    """
    if place.gpu_instance_id is None:
        return 1.0
    own = None if gpu is None else _gpu_instance(gpu, place)
    if gpu is None or own is None or not own.gpu_instance_slices:
        return None
    return sum(instance.gpu_instance_slices for instance in gpu.gpu_instances()) / own.gpu_instance_slices


def _sm_ratio(share: ProcessShare, scale: float | None) -> float | None:
    return None if share.sm is None or scale is None else min(1.0, share.sm.amount / WHOLE_SM * scale)


def _others(share: ProcessShare, on_device: Iterable[ProcessShare], scale: float | None) -> dict[str, float]:
    """What other owners use of the same device, the largest first."""
    by_owner: dict[str, float] = {}
    for other in on_device:
        if other.owner != share.owner and (ratio := _sm_ratio(other, scale)) is not None:
            by_owner[_owner(other)] = by_owner.get(_owner(other), 0.0) + ratio
    return dict(sorted(by_owner.items(), key=lambda item: -item[1]))


def _limit(program: _Program) -> ProgramLimit | None:
    for judge in (_absent, _quota, _waiting, _fault, _sharing_limit, _power, _not_busy, _memory, _link):
        if (limit := judge(program)) is not None:
            return limit
    ratio = program.sm_ratio
    if ratio is None:
        return None
    if ratio < _BUSY_RATIO:
        sentence = f"GPU {program.slot} is active for {ratio:.0%} of the time; what it waits for is not known"
        return ProgramLimit(LimitKind.IDLE, sentence)
    return ProgramLimit(LimitKind.GPU, f"GPU {program.slot} is the limit: it uses {ratio:.0%} of it")


def _absent(program: _Program) -> ProgramLimit | None:
    parked = program.parked
    if parked is None:
        return None
    if parked.stage == "waking":
        return ProgramLimit(LimitKind.PARKED, f"its memory is coming back to GPU {program.slot}")
    why = f": {parked.waits}" if parked.waits else ""
    return ProgramLimit(LimitKind.PARKED, f"it is parked: its GPU memory is in host memory{why}")


def _quota(program: _Program) -> ProgramLimit | None:
    client = program.client
    if client is None:
        return None
    waits = client.wait is not None and client.wait.reason is WaitReason.QUOTA
    is_used_up = (
        client.core_quota_effective_percent < 100 and client.window_usage_s >= _QUOTA_RATIO * client.window_limit_s
    )
    if not waits and not is_used_up:
        return None
    percent = client.core_quota_effective_percent
    return ProgramLimit(LimitKind.QUOTA, f"its quota is the limit: {percent:.0f}% of the time of GPU {program.slot}")


def _waiting(program: _Program) -> ProgramLimit | None:
    client = program.client
    if client is None or client.wait is None or not client.wait.is_lasting:
        return None
    return ProgramLimit(LimitKind.TURN, f"it waits for its turn on GPU {program.slot}: {wait_sentence(client)}")


def _slowdown_reasons(program: _Program) -> set[str]:
    """Why the GPU runs slower now; none for a program that does not use it."""
    if program.gpu is None or (program.sm_ratio is not None and program.sm_ratio < _IDLE_RATIO):
        return set()
    return set(program.gpu.readings.throttle_reasons or ())


def _fault(program: _Program) -> ProgramLimit | None:
    reasons = _slowdown_reasons(program)
    if program.gpu is not None and reasons.intersection(_HEAT):
        celsius = program.gpu.readings.temperature_celsius
        heat = "" if celsius is None else f" ({celsius} °C)"
        return ProgramLimit(LimitKind.HEAT, f"GPU {program.slot} is too hot{heat} and runs slower until it cools")
    if reasons.intersection(_HARDWARE):
        sentence = f"GPU {program.slot} is slowed down by the hardware: ask the administrator"
        return ProgramLimit(LimitKind.HARDWARE, sentence)
    return None


def _sharing_limit(program: _Program) -> ProgramLimit | None:
    total = sum(program.others.values())
    if total < _OTHERS_RATIO or (program.sm_ratio is not None and program.sm_ratio >= _BUSY_RATIO):
        return None
    named = ", ".join(f"{owner} ({ratio:.0%})" for owner, ratio in list(program.others.items())[:_NAMED])
    more = f" and {len(program.others) - _NAMED} more" if len(program.others) > _NAMED else ""
    own = "" if program.sm_ratio is None else f", and uses {program.sm_ratio:.0%} of it"
    return ProgramLimit(LimitKind.SHARED, f"it shares GPU {program.slot} with {named}{more}{own}")


def _power(program: _Program) -> ProgramLimit | None:
    if program.gpu is None or _POWER not in _slowdown_reasons(program):
        return None
    watts = program.gpu.readings.power_limit_watts
    limit = "" if watts is None else f" of {watts:.0f} W"
    return ProgramLimit(LimitKind.POWER, f"GPU {program.slot} is at its power limit{limit} and runs slower")


def _not_busy(program: _Program) -> ProgramLimit | None:
    ratio = program.sm_ratio
    if ratio is None or ratio >= _BUSY_RATIO:
        return None
    active = f"GPU {program.slot} is active for {ratio:.0%} of the time"
    if program.on_core:
        sentence = f"it waits for its CPU or data loader: {active}, one CPU core is busy all the time"
        return ProgramLimit(LimitKind.CPU, sentence)
    if program.on_disk:
        return ProgramLimit(LimitKind.DISK, f"it waits for a disk: {active}")
    if ratio < _IDLE_RATIO:
        return ProgramLimit(LimitKind.IDLE, f"it does not use GPU {program.slot} now")
    if program.on_core is None:
        return None
    return ProgramLimit(LimitKind.IDLE, f"{active}; it waits for something else than its CPU or a disk")


def _memory(program: _Program) -> ProgramLimit | None:
    gpm = program.gpm
    if gpm is None or gpm.dram_ratio is None or gpm.dram_ratio < _BANDWIDTH_RATIO:
        return None
    return ProgramLimit(
        LimitKind.BANDWIDTH,
        f"the memory bandwidth of GPU {program.slot} is the limit: {gpm.dram_ratio:.0%} of it is used",
    )


def _link(program: _Program) -> ProgramLimit | None:
    if program.gpu is None:
        return None
    now = program.gpu.readings
    lane = _LANE_BYTES_PER_S.get(now.pcie_generation or 0)
    moved = max(now.pcie_tx_bytes_per_s or 0, now.pcie_rx_bytes_per_s or 0)
    if lane is None or not now.pcie_width or moved < _PCIE_RATIO * lane * now.pcie_width:
        return None
    part = moved / (lane * now.pcie_width)
    return ProgramLimit(LimitKind.PCIE, f"PCIe is the limit: {part:.0%} of the link of GPU {program.slot} is used")
