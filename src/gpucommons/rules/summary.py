"""The state of a node, and that of a fleet, in one sentence each. Pure.

What is broken comes first, then what is free, what is held idle, and what waits.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from gpucommons.base.periods import spoken_age
from gpucommons.base.text import memory_text
from gpucommons.model.allocations import SlotState, SlotStatus
from gpucommons.model.fleet import FleetSlot, FleetState, FleetView
from gpucommons.model.problems import HealthLevel, Problem, ProblemKind
from gpucommons.model.sharing import ClientSharing
from gpucommons.model.snapshot import Snapshot
from gpucommons.rules.problems import holder_names

# The state of the node in one sentence: what is broken, what is free, what is held idle, what waits. Pure.
#
# The page, its title and every other place take the sentence from here.


class Tone(StrEnum):
    """The colour of a part: bad and warning need attention, good is what a viewer looks for, plain is neither."""

    BAD = "bad"
    WARNING = "warning"
    GOOD = "good"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class SummaryPart:
    """`detail` says which: indexes of GPUs, or the longest holder. `slots` names the slots that it counts.

    `lines` has one text for each of those that an administrator asks for by name: idle holders, what waits and for
    what, what is lost, and for how long.
    """

    name: str
    count: int
    text: str
    tone: Tone
    detail: str = ""
    slots: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()


class StateSummary(NamedTuple):
    """Of a node, or of a fleet."""

    parts: tuple[SummaryPart, ...]

    @property
    def sentence(self) -> str:
        return " · ".join(part.text for part in self.parts)

    @property
    def tone(self) -> Tone:
        tones = {part.tone for part in self.parts}
        return next((tone for tone in (Tone.BAD, Tone.WARNING) if tone in tones), Tone.GOOD)


_COUNTED = (
    ProblemKind.DRIVER,
    ProblemKind.GPU_LOST,
    ProblemKind.GPU_MISSING,
    ProblemKind.OVERHEATING,
    ProblemKind.HELD_IDLE,
)


def summary_of(snapshot: Snapshot, problems: Sequence[Problem]) -> StateSummary:
    readings = snapshot.readings
    parts = [*_broken_parts(problems, snapshot.wall_s)]
    if any(problem.kind is ProblemKind.DRIVER for problem in problems):
        parts.append(SummaryPart("driver", 1, "driver does not answer", Tone.BAD))
    elif readings.gpus is None:
        parts.append(SummaryPart("gpus", 0, "no GPU", Tone.PLAIN))
    elif readings.slots is None:
        parts.append(SummaryPart("free", 0, "free slots unknown", Tone.WARNING))
    else:
        parts += _slots(readings.slots.slots)
    parts += _waiting(snapshot)
    return StateSummary(tuple(parts))


def _broken_parts(problems: Sequence[Problem], now_wall_s: float) -> Iterator[SummaryPart]:
    lost = [problem for problem in problems if problem.kind is ProblemKind.GPU_LOST]
    hot = [problem for problem in problems if problem.kind is ProblemKind.OVERHEATING]
    other = [problem for problem in problems if problem.kind not in _COUNTED]
    if lost:
        part = _of_gpus("lost", f"{len(lost)} {'GPU' if len(lost) == 1 else 'GPUs'} lost", Tone.BAD, lost)
        yield replace(part, lines=tuple(_lost_line(gpu, now_wall_s) for gpu in lost))
    missing = sum(problem.kind is ProblemKind.GPU_MISSING for problem in problems)
    if missing:
        yield SummaryPart("missing", missing, f"{missing} {'GPU' if missing == 1 else 'GPUs'} missing", Tone.BAD)
    if hot:
        grave = any(problem.level >= HealthLevel.CRITICAL for problem in hot)
        yield _of_gpus("overheating", f"{len(hot)} overheating", Tone.BAD if grave else Tone.WARNING, hot)
    if other:
        grave = any(problem.level >= HealthLevel.CRITICAL for problem in other)
        more = " other" if lost or hot else ""
        text = f"{len(other)}{more} {'problem' if len(other) == 1 else 'problems'}"
        yield SummaryPart("problems", len(other), text, Tone.BAD if grave else Tone.WARNING)


def _lost_line(problem: Problem, now_wall_s: float) -> str:
    since_s = problem.since_wall_s
    return f"GPU {problem.gpu_index}" + (
        "" if since_s is None else f" for {spoken_age(max(0.0, now_wall_s - since_s))}"
    )


def _of_gpus(name: str, text: str, tone: Tone, problems: Sequence[Problem]) -> SummaryPart:
    indexes = tuple(str(problem.gpu_index) for problem in problems)
    return SummaryPart(name, len(problems), text, tone, f"GPU {', '.join(indexes)}", indexes)


def _slots(slots: Iterable[SlotStatus]) -> Iterator[SummaryPart]:
    by_state: dict[SlotState, list[SlotStatus]] = {}
    for status in slots:
        by_state.setdefault(status.state, []).append(status)
    free = by_state.get(SlotState.FREE, [])
    names = tuple(status.slot.name for status in free)
    yield SummaryPart(
        "free", len(free), f"{len(free)} free", Tone.GOOD if free else Tone.PLAIN, _list_names(names), names
    )
    unknown = by_state.get(SlotState.UNKNOWN, [])
    if unknown:
        names = tuple(status.slot.name for status in unknown)
        yield SummaryPart("unknown", len(unknown), f"{len(unknown)} unknown", Tone.WARNING, _list_names(names), names)
    idle = by_state.get(SlotState.HELD_IDLE, [])
    if idle:
        longest_first = sorted(idle, key=lambda status: (-(status.idle_s or 0.0), status.gpu_index))
        longest = longest_first[0]
        detail = f"longest {holder_names(longest)}, {spoken_age(longest.idle_s or 0.0)}"
        names = tuple(status.slot.name for status in idle)
        lines = tuple(_idle_line(status) for status in longest_first)
        yield SummaryPart("held_idle", len(idle), f"{len(idle)} held idle", Tone.WARNING, detail, names, lines)
    for state, word in ((SlotState.BUSY, "busy"), (SlotState.RESERVED, "reserved")):
        slot_names = tuple(status.slot.name for status in by_state.get(state, []))
        if slot_names:
            yield SummaryPart(state.value, len(slot_names), f"{len(slot_names)} {word}", Tone.PLAIN, slots=slot_names)


def slot_detail(status: SlotStatus, now_wall_s: float) -> str:
    """By which holder and for how long, after the word for the state; for a lost or unknown slot, why."""
    age = None if status.since_wall_s is None else spoken_age(max(0.0, now_wall_s - status.since_wall_s))
    if status.state is SlotState.HELD_IDLE:
        unused = "" if status.idle_s is None else f" for {spoken_age(status.idle_s)}"
        return f"by {holder_names(status)}{unused}"
    if status.state is SlotState.BUSY:
        return f"by {holder_names(status)}" + ("" if age is None else f", held for {age}")
    if status.state is SlotState.FREE:
        return "" if age is None else f"for {age}"
    return status.why


def _idle_line(status: SlotStatus) -> str:
    since = "" if status.idle_s is None else f" for {spoken_age(status.idle_s)}"
    return f"{holder_names(status)}: GPU {status.slot.name}{since}"


def _list_names(names: Sequence[str]) -> str:
    return f"GPU {', '.join(names[:4])}{' …' if len(names) > 4 else ''}" if names else ""


def _waiting(snapshot: Snapshot) -> Iterator[SummaryPart]:
    sharing, leases = snapshot.readings.sharing, snapshot.readings.leases
    everyone = sharing.clients if sharing else ()
    clients = [client for client in everyone if client.wait is not None and client.wait.is_lasting]
    count = len(clients) + len(leases.waiting if leases else ())
    if count:
        names = tuple(dict.fromkeys(str(client.gpu_index) for client in clients if client.gpu_index is not None))
        lines = (
            *_requests(snapshot),
            *_clients(clients, {gpu.uuid: gpu.slot for gpu in sharing.gpus} if sharing else {}),
        )
        yield SummaryPart("waiting", count, f"{count} waiting", Tone.PLAIN, slots=names, lines=lines)
    programs = sharing.parking.programs if sharing and sharing.parking else ()
    if programs:
        yield SummaryPart("parked", len(programs), f"{len(programs)} parked", Tone.PLAIN)


def _requests(snapshot: Snapshot) -> Iterator[str]:
    """Requests for a lease, in their order: who waits for what, and since when."""
    for request, _ in snapshot.readings.leases.waiting if snapshot.readings.leases else ():
        sought = _plural(request.gpus, "GPU")
        if request.memory_bytes is not None:
            sought += f" with {memory_text(request.memory_bytes)}"
        yield f"{request.user}: {sought} for {spoken_age(max(0.0, snapshot.wall_s - request.arrived_s))}"


def _clients(clients: Iterable[ClientSharing], slots: Mapping[str, str]) -> Iterator[str]:
    """Clients that wait for their turn, the longest first."""
    waits = [(client.wait.waited_s, client) for client in clients if client.wait is not None]
    for waited_s, client in sorted(waits, key=lambda pair: -pair[0]):
        slot = slots.get(client.gpu_uuid) or client.gpu_index
        on = "" if slot is None else f" on GPU {slot}"
        yield f"{client.name or client.client_id}: its turn{on} for {spoken_age(waited_s)}"


# The state of a fleet in one sentence: what does not answer, what is free, what is held idle, what waits. Pure.


def fleet_summary(view: FleetView) -> StateSummary:
    return StateSummary(tuple(_parts(view)))


def _parts(view: FleetView) -> Iterator[SummaryPart]:
    states = Counter(slot.state for slot in view.slots)
    silent = [node.name for node in view.nodes if not node.answers]
    if silent:
        text = f"{_plural(len(silent), 'node')} not answering"
        yield SummaryPart("silent", len(silent), text, Tone.BAD, _list_nodes(silent))
    if states[FleetState.LOST]:
        lost = states[FleetState.LOST]
        yield SummaryPart("lost", lost, f"{_plural(lost, 'GPU')} lost", Tone.BAD)
    troubled = [node.name for node in view.nodes if node.answers and any(map(_is_news, node.problems))]
    if troubled:
        text = f"{_plural(len(troubled), 'node')} with problems"
        yield SummaryPart("problems", len(troubled), text, Tone.WARNING, _list_nodes(troubled))
    free = states[FleetState.FREE]
    of_all = f"of {_plural(len(view.slots), 'slot')} on {_plural(len(view.nodes), 'node')}"
    yield SummaryPart("free", free, f"{free} free", Tone.GOOD if free else Tone.PLAIN, of_all)
    idle = [slot for slot in view.slots if slot.state is FleetState.HELD_IDLE]
    if idle:
        yield SummaryPart("held_idle", len(idle), f"{len(idle)} held idle", Tone.WARNING, _longest(view, idle[0]))
    for state, tone in (
        (FleetState.UNKNOWN, Tone.WARNING),
        (FleetState.BUSY, Tone.PLAIN),
        (FleetState.RESERVED, Tone.PLAIN),
    ):
        if states[state]:
            yield SummaryPart(state.value, states[state], f"{states[state]} {state.value}", tone)
    clients = sum(slot.waiting + slot.paused for slot in view.slots)
    waiting = clients + sum(node.waiting or 0 for node in view.nodes)
    if waiting:
        yield SummaryPart("waiting", waiting, f"{waiting} waiting", Tone.PLAIN)
    parked = sum(slot.parked for slot in view.slots)
    if parked:
        yield SummaryPart("parked", parked, f"{parked} parked", Tone.PLAIN)


def _is_news(kind: str) -> bool:
    """Lost GPUs and idle holders have a part of their own."""
    return kind not in (ProblemKind.GPU_LOST, ProblemKind.HELD_IDLE)


def _longest(view: FleetView, slot: FleetSlot) -> str:
    """Slots that are held idle are in the order of their time."""
    if slot.idle_s is None:
        return ""
    name = next(node.name for node in view.nodes if node.instance == slot.node)
    holder = ", ".join(slot.holders) or "a hidden owner"
    return f"longest {holder} on {name} GPU {slot.slot}, {spoken_age(slot.idle_s)}"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun if count == 1 else noun + 's'}"


def _list_nodes(names: list[str]) -> str:
    return f"{', '.join(names[:3])}{' …' if len(names) > 3 else ''}"
