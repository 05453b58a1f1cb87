"""Why a program cannot be parked. Pure."""

from gpucommons.parking.values import (
    GIB,
    ParkProgram,
    ParkRefusal,
    ParkSituation,
    ParkStage,
    ParkTerms,
    WhyNot,
)


def refusal_of(terms: ParkTerms, situation: ParkSituation, program: ParkProgram) -> ParkRefusal | None:
    """Why this program cannot be parked now; None where it can."""
    if program.obstacle is not None:
        return program.obstacle
    if not all(_would_fit(terms, situation, program, device) for device in program.memory):
        return ParkRefusal(
            WhyNot.GPU_MEMORY,
            f"it could not come back: it fills its GPU, and {gib_text(terms.gpu_reserve_bytes)} has to stay free",
        )
    if situation.host is None:
        return ParkRefusal(WhyNot.HOST_MEMORY, "the memory of the host could not be read")
    budget = situation.host.budget_bytes(terms.host_reserve_percent)
    if program.bytes > budget:
        return ParkRefusal(
            WhyNot.HOST_MEMORY,
            f"it needs {gib_text(program.bytes)} of host memory, {gib_text(budget)} can be used; "
            "parking.host_reserve_percent keeps the rest free",
        )
    room = program.container_room_bytes
    if room is not None and program.bytes > room:
        return ParkRefusal(
            WhyNot.CONTAINER_MEMORY,
            f"it needs {gib_text(program.bytes)} of host memory, "
            f"the memory limit of its container leaves {gib_text(room)}",
        )
    return None


def _would_fit(terms: ParkTerms, situation: ParkSituation, program: ParkProgram, device: str) -> bool:
    """Whether it fits again with the reserve, once all others have left; also where that is not known."""
    room = situation.rooms.get(device)
    if room is None:
        return True
    on_gpu = (one for one in situation.programs if one.stage is not ParkStage.PARKED and one.key != program.key)
    others = sum(one.memory.get(device, 0) for one in on_gpu)
    return room.free_bytes + others >= terms.gpu_reserve_bytes


def gib_text(amount: int) -> str:
    return f"{amount / GIB:.1f} GiB"
