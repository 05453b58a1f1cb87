"""Divides what the driver reports for one GPU among the processes on it. Pure, in integers.

For each quantity, the parts and the rest sum exactly to the GPU's total. The remainder of a division is in the rest.
The owners of the parts are not decided here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gpucommons.model.gpu import Gpu, GpuProcess
from gpucommons.model.ownership import WHOLE_SM, Basis, Portion, Reason
from gpucommons.model.process_identity import PidScope, PidView


class Resident(NamedTuple):
    """One process on the GPU, as the driver reports it. None is not reported."""

    memory_bytes: int | None
    sm_millionths: int | None
    gpu_instance_id: int | None = None


class DeviceTotals(NamedTuple):
    """One GPU, as the driver reports it.

    `instances` holds, under MIG, the SM time of each GPU instance whose activity is known, in millionths
    of the whole GPU. `unlisted` is the reason for usage that no listed process has.
    """

    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    sm_millionths: int | None = None
    power_milliwatts: int | None = None
    instances: Mapping[int, int] | None = None
    unlisted: Reason = Reason.DRIVER_RESERVED

    @property
    def busy(self) -> int | None:
        """The SM time of the whole GPU."""
        return self.sm_millionths if self.instances is None else sum(self.instances.values())

    @property
    def idle_reason(self) -> Reason:
        """The reason for SM time or power without a process. The driver reserves memory, but neither of these."""
        return Reason.NO_PROCESS if self.unlisted is Reason.DRIVER_RESERVED else self.unlisted


Rest = dict[Reason, int]
# What the driver reported for each resident, in their order.
Reported = list[int | None]


@dataclass(slots=True)
class Division:
    """One quantity, divided: a part for each resident (None where unknown), and the rest by reason."""

    total: int | None
    parts: list[Portion | None]
    rest: Rest = field(default_factory=dict)


class Apportionment(NamedTuple):
    """`reported` is what the memory was divided by: what each resident has, and the reason for the rest."""

    memory: Division
    sm: Division
    power: Division
    reported: tuple[Reported, Reason] | None = None


def apportion(
    device: DeviceTotals,
    residents: Sequence[Resident],
    idle_milliwatts: int | None = None,
    before: Apportionment | None = None,
) -> Apportionment:
    """Divide memory, SM time and power. `idle_milliwatts` is the idle power of the GPU, if known.

    Memory that is the same as `before` is not divided again.
    """
    # A binding that does not match the driver returns garbage: a value beyond the device's is not a reading.
    memory = _plausible([resident[0] for resident in residents], device.memory_total_bytes)
    sampled = _plausible([resident[1] for resident in residents], WHOLE_SM)
    sm = _divide_sm(device, residents, memory, sampled)
    reported = memory, Reason.NO_MEMORY_READING if None in memory else device.unlisted
    if before is not None and before.reported == reported and before.memory.total == device.memory_used_bytes:
        divided = before.memory
    else:
        divided = _divide_as_reported(device.memory_used_bytes, *reported)
    return Apportionment(divided, sm, _divide_power(device, memory, sm, idle_milliwatts or 0), reported)


def _plausible(reported: Reported, limit: int | None) -> Reported:
    if limit is None:
        return [None if t is None or t < 0 else t for t in reported]
    return [None if t is None or not 0 <= t <= limit else t for t in reported]


def _divide_sm(device: DeviceTotals, residents: Sequence[Resident], memory: Reported, sampled: Reported) -> Division:
    """With MIG, the time of each instance is divided among its residents; otherwise that of the GPU."""
    if device.instances is None:
        return _divide_sm_pool(device.sm_millionths, memory, sampled, device.idle_reason)
    whole = Division(device.busy, [None] * len(residents))
    for instance_id, sm_millionths in device.instances.items():
        inside = [i for i, resident in enumerate(residents) if resident.gpu_instance_id == instance_id]
        pool = _divide_sm_pool(
            sm_millionths, [memory[i] for i in inside], [sampled[i] for i in inside], device.idle_reason
        )
        for i, part in zip(inside, pool.parts, strict=True):
            whole.parts[i] = part
        for reason, amount in pool.rest.items():
            _leave(whole.rest, reason, amount)
    return whole


def _divide_sm_pool(total: int | None, memory: Reported, sampled: Reported, unused: Reason) -> Division:
    """By the samples of each process; if there are none, by memory or evenly."""
    if total is None or any(sample is not None for sample in sampled):
        return _divide_as_reported(total, sampled, Reason.NO_UTILIZATION_SAMPLE)
    return _divide_by_weight(total, _by_memory_or_evenly(memory), unused)


def _divide_power(device: DeviceTotals, memory: Reported, sm: Division, idle_milliwatts: int) -> Division:
    """The idle power is divided evenly among the residents, the rest by SM time."""
    draw = device.power_milliwatts
    if draw is None:
        return Division(None, [None] * len(memory))
    weights = [part[0] if part else 0 for part in sm.parts]
    # The remainder of dividing the SM time is not activity: it uses no power.
    unowned: Rest = {reason: amount for reason, amount in sm.rest.items() if reason is not Reason.ROUNDING}
    if not any(weights) and not unowned:
        # Without activity, the power is divided by presence.
        by_presence = _by_memory_or_evenly(memory) if sm.total is None else [1] * len(memory)
        return _divide_by_weight(draw, by_presence, device.idle_reason)
    idle = min(draw, idle_milliwatts)
    # Each resident's part of the idle power, and the remainder.
    resting, left_over = divmod(idle, len(memory)) if memory else (0, 0)
    busy, rest = _weigh(draw - idle, weights, unowned)
    _leave(rest, Reason.ROUNDING if memory else device.idle_reason, left_over if memory else idle)
    return Division(draw, _portions([amount + resting for amount in busy], Basis.APPORTIONED), rest)


def _divide_as_reported(total: int | None, reported: Reported, silent: Reason) -> Division:
    """Each resident gets what was reported for it, scaled down if the sum exceeds the total."""
    together = sum(filter(None, reported))
    if total is None or together <= total:
        return Division(
            total, _portions(reported, Basis.MEASURED), {} if total is None else _rest(silent, total - together)
        )
    scaled = {amount: _scaled(amount, total, together) for amount in set(reported)}
    parts = [scaled[amount] for amount in reported]
    return Division(total, parts, _rest(Reason.ROUNDING, total - sum(part.amount for part in parts if part)))


def _scaled(amount: int | None, total: int, together: int) -> Portion | None:
    """A zero is as the driver reported it."""
    if amount is None:
        return None
    return Portion(total * amount // together, Basis.APPORTIONED if amount else Basis.MEASURED)


def _divide_by_weight(total: int, weights: Sequence[int], unused: Reason) -> Division:
    if not weights:
        return Division(total, [], _rest(unused, total))
    amounts, rest = _weigh(total, weights, {})
    return Division(total, _portions(amounts, Basis.APPORTIONED), rest)


def _portions(amounts: Sequence[int | None], basis: Basis) -> list[Portion | None]:
    """Equal amounts share a Portion: of hundreds of processes on a GPU, most use as much as another one."""
    made = {amount: None if amount is None else Portion(amount, basis) for amount in set(amounts)}
    return [made[amount] for amount in amounts]


def _weigh(total: int, weights: Sequence[int], rest_weights: Rest) -> tuple[list[int], Rest]:
    """Integer shares of the total by weight, for residents and reasons; the remainder is rounding."""
    whole = sum(weights) + sum(rest_weights.values())
    amounts = [total * weight // whole if weight else 0 for weight in weights]
    rest: Rest = {}
    for reason, weight in rest_weights.items():
        _leave(rest, reason, total * weight // whole if whole else 0)
    _leave(rest, Reason.ROUNDING, total - sum(amounts) - sum(rest.values()))
    return amounts, rest


def _by_memory_or_evenly(memory: Reported) -> list[int]:
    amounts = [amount for amount in memory if amount is not None]
    return amounts if len(amounts) == len(memory) and sum(amounts) > 0 else [1] * len(memory)


def _rest(reason: Reason, amount: int) -> Rest:
    return {reason: amount} if amount else {}


def _leave(rest: Rest, reason: Reason, amount: int) -> None:
    if amount:
        rest[reason] = rest.get(reason, 0) + amount


# What is divided of one GPU, as integers for apportioning. Pure.

_PERCENT = WHOLE_SM // 100


def device_of(gpu: Gpu, view: PidView) -> DeviceTotals:
    readings = gpu.readings
    watts = readings.power_watts
    return DeviceTotals(
        memory_used_bytes=readings.memory_used_bytes,
        memory_total_bytes=readings.memory_total_bytes,
        sm_millionths=_busy(gpu),
        power_milliwatts=None if watts is None else round(watts * 1000),
        instances=_instances(gpu) or None if gpu.mig else None,
        unlisted=_unlisted_reason(gpu, view),
    )


def resident_of(process: GpuProcess) -> Resident:
    percent = process.sm_percent
    return Resident(process.used_memory_bytes, None if percent is None else percent * _PERCENT, process.gpu_instance_id)


def _busy(gpu: Gpu) -> int | None:
    """The busy time of the GPU, as the driver or its performance counters report it."""
    percent = gpu.readings.utilization_percent
    if percent is not None:
        return percent * _PERCENT
    ratio = gpu.gpm.graphics_ratio if gpu.gpm else None
    return None if ratio is None else round(ratio * WHOLE_SM)


def _instances(gpu: Gpu) -> dict[int, int]:
    """The busy time of each MIG GPU instance that reports it, weighted by its slices of the GPU."""
    instances = list(gpu.gpu_instances())
    slices = sum(instance.gpu_instance_slices for instance in instances)
    return {
        instance.gpu_instance_id: round(ratio * WHOLE_SM * instance.gpu_instance_slices / slices)
        for instance in instances
        if slices and instance.gpm and (ratio := instance.gpm.graphics_ratio) is not None
    }


def _unlisted_reason(gpu: Gpu, view: PidView) -> Reason:
    if gpu.processes is None:
        return Reason.NO_PROCESS_LIST
    return Reason.NOT_VISIBLE if view.scope is PidScope.NAMESPACE else Reason.DRIVER_RESERVED
