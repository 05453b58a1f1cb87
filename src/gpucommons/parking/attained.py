"""How much of a GPU's time each program has had since others wait for room on it. Pure.

Programs at work on a device share its time evenly. A program that only holds room there is charged as much as each of
them; one that is parked or moved is not charged. A program or request that comes later begins with the least that
another has had, so that it does not make up for the time before it came.
"""

from collections.abc import Iterator, Mapping

from gpucommons.parking.values import ParkProgram, ParkSituation, ParkStage


def attained_seconds(before: ParkSituation | None, now: ParkSituation) -> Mapping[str, Mapping[str, float]]:
    """By device, then by the key of the program or the id of the need. `before` is the situation at the last step."""
    devices = {device for program in now.programs for device in program.memory}
    return {device: _on_device(before, now, device) for device in devices}


def programs_at_work(situation: ParkSituation, device: str) -> int:
    """Between how many programs the time of a device is divided; at least one."""
    return max(1, sum(program.uses_gpu for program in _held(situation, device)))


def _on_device(before: ParkSituation | None, now: ParkSituation, device: str) -> Mapping[str, float]:
    competing = set(_competing(now, device))
    known: dict[str, float] = {}
    if before is not None:
        charge_s = (now.now_s - before.now_s) / programs_at_work(before, device)
        charged = {program.key for program in _held(before, device)}
        for key, attained_s in before.attained_s.get(device, {}).items():
            if key in competing:
                known[key] = attained_s + (charge_s if key in charged else 0.0)
    least_s = min(known.values(), default=0.0)
    return dict.fromkeys(competing, least_s) | known


def _held(situation: ParkSituation, device: str) -> Iterator[ParkProgram]:
    return (one for one in situation.programs if one.stage is ParkStage.HELD and device in one.memory)


def _competing(situation: ParkSituation, device: str) -> Iterator[str]:
    """The programs that are on the device or wait to be, and the requests that wait for room there."""
    for program in situation.programs:
        if device in program.memory and (
            program.stage is not ParkStage.PARKED or program.wakes_since_s is not None or program.for_turn
        ):
            yield program.key
    yield from (need.id for need in situation.claims.needs if device in need.devices)
