"""The state of a fleet in one sentence: what does not answer, what is free, what is held idle, what waits. Pure."""

from collections import Counter
from collections.abc import Iterator

from gpucommons.base.duration_text import spoken_age
from gpucommons.model.fleet import FleetSlot, FleetState, FleetView
from gpucommons.rules.summary import StateSummary, SummaryPart, Tone


def fleet_summary(view: FleetView) -> StateSummary:
    return StateSummary(tuple(_parts(view)))


def _parts(view: FleetView) -> Iterator[SummaryPart]:
    states = Counter(slot.state for slot in view.slots)
    silent = [node.name for node in view.nodes if not node.answers]
    if silent:
        text = f"{_plural(len(silent), 'node')} not answering"
        yield SummaryPart("silent", len(silent), text, Tone.BAD, _listed(silent))
    if states[FleetState.LOST]:
        lost = states[FleetState.LOST]
        yield SummaryPart("lost", lost, f"{_plural(lost, 'GPU')} lost", Tone.BAD)
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


def _longest(view: FleetView, slot: FleetSlot) -> str:
    """Slots that are held idle are in the order of their time."""
    if slot.idle_s is None:
        return ""
    name = next(node.name for node in view.nodes if node.instance == slot.node)
    holder = ", ".join(slot.holders) or "a hidden owner"
    return f"longest {holder} on {name} GPU {slot.slot}, {spoken_age(slot.idle_s)}"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun if count == 1 else noun + 's'}"


def _listed(names: list[str]) -> str:
    return f"{', '.join(names[:3])}{' …' if len(names) > 3 else ''}"
