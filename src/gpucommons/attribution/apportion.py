"""Divides what the driver tells of one GPU among the processes on it. Pure, in whole numbers.

Nothing is lost or made: for each quantity, the parts and the rest sum to the GPU's own figure, exactly.
What division leaves over goes to the rest. Knows no process by name: who owns a part is not decided here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gpucommons.model.ownership import Basis, Portion, Reason

WHOLE_SM = 1_000_000


class Resident(NamedTuple):
    """One process on the GPU, as the driver tells of it. None is what the driver does not tell."""

    memory_bytes: int | None
    sm_millionths: int | None
    gpu_instance_id: int | None = None


class DeviceTotals(NamedTuple):
    """One GPU, as the driver tells of it.

    `instances` holds, under MIG, the SM time of each GPU instance whose activity is known, in millionths
    of the whole GPU. `unlisted` is why something may be used that no listed process uses.
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
    def nobody(self) -> Reason:
        """Why time or power may be nobody's. The driver keeps memory for itself, but neither of these."""
        return Reason.NO_PROCESS if self.unlisted is Reason.DRIVER_RESERVED else self.unlisted


Rest = dict[Reason, int]
# What the driver told of each resident, in their order.
Told = list[int | None]


@dataclass(slots=True)
class Division:
    """One quantity, divided: a part for each resident (None where unknown), and the rest by reason."""

    total: int | None
    parts: list[Portion | None]
    rest: Rest = field(default_factory=dict)


class Apportionment(NamedTuple):
    memory: Division
    sm: Division
    power: Division


def apportion(device: DeviceTotals, residents: Sequence[Resident], idle_milliwatts: int | None = None) -> Apportionment:
    """Divide all there is. `idle_milliwatts` is what the GPU draws doing nothing, where that is known."""
    # A binding that does not fit the driver gives wild numbers: one beyond the device is no reading.
    memory = _believed([resident[0] for resident in residents], device.memory_total_bytes)
    sampled = _believed([resident[1] for resident in residents], WHOLE_SM)
    sm = _divide_sm(device, residents, memory, sampled)
    silent = Reason.NO_MEMORY_READING if None in memory else device.unlisted
    return Apportionment(
        _as_told(device.memory_used_bytes, memory, silent),
        sm,
        _divide_power(device, memory, sm, idle_milliwatts or 0),
    )


def _believed(told: Told, most: int | None) -> Told:
    if most is None:
        return [None if t is None or t < 0 else t for t in told]
    return [None if t is None or not 0 <= t <= most else t for t in told]


def _divide_sm(device: DeviceTotals, residents: Sequence[Resident], memory: Told, sampled: Told) -> Division:
    """Under MIG each instance's time is its residents'; otherwise the GPU's is everybody's."""
    if device.instances is None:
        return _divide_sm_pool(device.sm_millionths, memory, sampled, device.nobody)
    whole = Division(device.busy, [None] * len(residents))
    for instance_id, sm_millionths in device.instances.items():
        inside = [i for i, resident in enumerate(residents) if resident.gpu_instance_id == instance_id]
        pool = _divide_sm_pool(sm_millionths, [memory[i] for i in inside], [sampled[i] for i in inside], device.nobody)
        for i, part in zip(inside, pool.parts, strict=True):
            whole.parts[i] = part
        for reason, amount in pool.rest.items():
            _leave(whole.rest, reason, amount)
    return whole


def _divide_sm_pool(total: int | None, memory: Told, sampled: Told, nobody: Reason) -> Division:
    """By what was sampled of each process; where nothing was, by memory or evenly."""
    if total is None or any(sample is not None for sample in sampled):
        return _as_told(total, sampled, Reason.NO_UTILIZATION_SAMPLE)
    return _shared(total, _by_memory_or_evenly(memory), nobody)


def _divide_power(device: DeviceTotals, memory: Told, sm: Division, idle_milliwatts: int) -> Division:
    """What the GPU draws beyond its idle draw goes by SM time; the idle draw is shared by all residents."""
    draw = device.power_milliwatts
    if draw is None:
        return Division(None, [None] * len(memory))
    weights = [part[0] if part else 0 for part in sm.parts]
    # What division left over of the SM time was nobody's activity: it has no draw.
    nobodys: Rest = {reason: amount for reason, amount in sm.rest.items() if reason is not Reason.ROUNDING}
    if not any(weights) and not nobodys:
        # No activity tells whose the draw is: all of it is theirs for being here.
        by_presence = _by_memory_or_evenly(memory) if sm.total is None else [1] * len(memory)
        return _shared(draw, by_presence, device.nobody)
    idle = min(draw, idle_milliwatts)
    # Evenly: what each has of the idle draw, and what that leaves over.
    resting, left_over = divmod(idle, len(memory)) if memory else (0, 0)
    busy, rest = _weighed(draw - idle, weights, nobodys)
    _leave(rest, Reason.ROUNDING if memory else device.nobody, left_over if memory else idle)
    return Division(draw, [Portion(amount + resting, Basis.APPORTIONED) for amount in busy], rest)


def _as_told(total: int | None, told: Told, silent: Reason) -> Division:
    """To each what was told of it, scaled down where that exceeds the total; what nobody has is the rest."""
    together = sum(filter(None, told))
    if total is None or together <= total:
        parts = [None if t is None else Portion(t, Basis.MEASURED) for t in told]
        return Division(total, parts, {} if total is None else _rest(silent, total - together))
    amounts, rest = _weighed(total, [t or 0 for t in told], {})
    scaled = zip(told, amounts, strict=True)
    return Division(total, [None if t is None else Portion(a, Basis.APPORTIONED) for t, a in scaled], rest)


def _shared(total: int, weights: Sequence[int], nobody: Reason) -> Division:
    if not weights:
        return Division(total, [], _rest(nobody, total))
    amounts, rest = _weighed(total, weights, {})
    return Division(total, [Portion(amount, Basis.APPORTIONED) for amount in amounts], rest)


def _weighed(total: int, weights: Sequence[int], rest_weights: Rest) -> tuple[list[int], Rest]:
    """Whole shares of the total by weight, for each and for each reason; what is left over is rounding."""
    whole = sum(weights) + sum(rest_weights.values())
    amounts = [total * weight // whole if whole else 0 for weight in weights]
    rest: Rest = {}
    for reason, weight in rest_weights.items():
        _leave(rest, reason, total * weight // whole if whole else 0)
    _leave(rest, Reason.ROUNDING, total - sum(amounts) - sum(rest.values()))
    return amounts, rest


def _by_memory_or_evenly(memory: Told) -> list[int]:
    known = [amount for amount in memory if amount is not None]
    return known if len(known) == len(memory) and sum(known) > 0 else [1] * len(memory)


def _rest(reason: Reason, amount: int) -> Rest:
    return {reason: amount} if amount else {}


def _leave(rest: Rest, reason: Reason, amount: int) -> None:
    if amount:
        rest[reason] = rest.get(reason, 0) + amount
