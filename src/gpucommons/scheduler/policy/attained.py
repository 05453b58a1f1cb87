"""Attained service: which waiting client is served next. The only code that changes these accounts and that order.

The waiting client whose owner has had least is the front: it gets room within a quantum. When it gets its turn it is
the anchor, until it stops or the next front has one. Other clients run in the room that is left over. The service of a
client is the time of its turns. The service of an owner is the time in which its client is the anchor, or in which its
clients run and none waits: while one waits, it is not charged for left-over room that only another one fits into. The
order is by least service, first between owners, then between the clients of one owner; the owner of the anchor is
behind all others. Plain programs are not counted, because admission neither stops them nor lets them wait.

Why that is fair. While a front waits, the anchor's turn ends when it has lasted a quantum T and its owner has had as
much as that of the front. Then after a time t each of n owners that request all the time has had at least t / n - T: as
long as one owner has had s, only owners with at most s became the anchor, each was the anchor for at most s + T, and
there always is an anchor. What an owner does not request is divided among the others in the same way. So the guarantee
is max-min fair: an owner has the smaller of what it requests and an equal share of what the others leave, and each of
its clients the same of what the owner has. Clients that fit next to others have more. Of two owners with one client
each, the one that needs less memory and less of the GPU has no less time: it fits wherever the other does, and is
preferred when it had less.

What keeps the front from its room in spite of that, and how it is prevented:

  - Turns that begin while it waits. When it has become the front, its room is promised (`room_s`): later turns do not
    put it off. A client that was let past it is a guest, and leaves as soon as nothing but guests is in the way.
  - The turns that were ended for it, whose clients request again at once. The room is claimed: the front runs first.
  - An anchor that stops early or disconnects, next to a client that goes on. While the front waits for that
    one, it inherits the anchor's part, and is charged, before any client passes the front.

Accounts are kept within bounds:

  - Idleness saves nothing. An owner that releases its turn before it was asked to, or was away for longer than
    BACK_WITHIN_S, begins at the least service of the owners that are present (`floor_s`), if it had less. Else an owner
    that hardly uses its turns would keep the least so low that the accounts of all others are luck.
  - Luck is forgotten. A client that fits next to all others runs most of the time. When a turn ends, what an account
    has above the least one and the longest quantum (`lead_s`) is halved, and at most two more such quanta: such a
    client waits a bounded time once it no longer fits, and of two such clients the one that had more still has more.
    Luck is time in the room that an anchor left over (`luck_s`). No more than that is forgotten: else an owner whose
    turns are short would be served again and again. Nor is a turn that was kept after the client was asked to stop.
  - Leaving pays nothing back. An owner that disconnects with more than the least service is remembered, and has that
    account when it connects again. It is forgotten once the others have had as much.
"""

from bisect import bisect_left, insort
from typing import Final

from gpucommons.scheduler.policy.state import (
    NEVER,
    Client,
    ClientStanding,
    GpuQueue,
    OwnerLine,
    PlaceEntry,
    ServiceOrder,
)

# A client that was dropped requests again in a moment: it was not away.
BACK_WITHIN_S: Final = 2.0
# A client that is asked to stop waits for the work that it has submitted. One that takes longer, also in proportion to
# its turn, has kept the turn.
_PROMPT_S: Final = 0.1
_PROMPT_RATIO: Final = 0.1
# Owners that left, per GPU.
_MAX_DEPARTED: Final = 256


def service_s(line: OwnerLine, now: float) -> float:
    """What an owner has had until now."""
    charged = line.running and (line.has_anchor or not line.waiting)
    return line.served_s + (now - line.since_s if charged else 0.0)


def own_service_s(client: Client, now: float) -> float:
    """What a client has had, its present turn included."""
    return client.service.served_s + (now - client.turn.begun_s if client.standing is ClientStanding.RUNNING else 0.0)


def set_lead(gpu: GpuQueue, lead_s: float) -> None:
    """How much more than the least served one an owner may have had without forgetting it: the longest quantum."""
    gpu.order.lead_s = lead_s


def promise_room(gpu: GpuQueue, client: Client, due_s: float) -> None:
    """Room is made for this client, by then."""
    gpu.order.front = client
    gpu.order.room_s = due_s


def promised_s(gpu: GpuQueue, client: Client) -> float:
    """By when room was promised to this client; NEVER if it is not the front."""
    return gpu.order.room_s if gpu.order.front is client else NEVER


def claim_room(gpu: GpuQueue, client: Client) -> None:
    """Turns were ended for this client: it is served next, before those whose turns they were."""
    gpu.order.claim = client


# Owners come and go


def enter(gpu: GpuQueue, client: Client, key: str) -> None:
    order = gpu.order
    line = order.lines.get(key)
    if line is None:
        line = order.lines[key] = OwnerLine()
        line.served_s = order.departed_s.pop(key, 0.0)
    line.clients += 1
    client.service.line = line


def leave(gpu: GpuQueue, client: Client, key: str, *, remember: bool) -> None:
    order = gpu.order
    line = client.service.line
    line.clients -= 1
    if client is order.front:
        order.front = None
    if client is order.anchor:
        order.anchor = None
        line.has_anchor = False
        if line.waiting:
            _place(gpu, line)
    if line.clients:
        return
    del order.lines[key]
    if remember and line.served_s > order.floor_s:
        departed_s = order.departed_s
        departed_s[key] = line.served_s
        if len(departed_s) > _MAX_DEPARTED:
            for forgotten in [key for key, served_s in departed_s.items() if served_s <= order.floor_s]:
                del departed_s[forgotten]
        if len(departed_s) > _MAX_DEPARTED:
            del departed_s[next(iter(departed_s))]


# The queue


def queue(gpu: GpuQueue, client: Client, now: float) -> None:
    """A request: the client waits, in the order of service."""
    order = gpu.order
    line = client.service.line
    waiting = line.waiting
    if client.service.released or now - client.service.ran_s > BACK_WITHIN_S:
        _return(gpu, client, now)
    # From now on one of its clients waits.
    _charge(line, now)
    order.requests = number = order.requests + 1
    order.waiting[client.id] = client
    entry = client.service.entry = (client.service.served_s, number, client)
    if waiting and waiting[-1] > entry:
        insort(waiting, entry)
    else:
        waiting.append(entry)
    if not (line.has_anchor or line.place is not None):
        _place(gpu, line)


def _return(gpu: GpuQueue, client: Client, now: float) -> None:
    """The client was away, or is new, and so may be its owner."""
    order = gpu.order
    line = client.service.line
    if not (line.running or line.waiting) and (client.service.released or now - line.ran_s > BACK_WITHIN_S):
        order.floor_s = max(order.floor_s, _least_s(gpu, now, default=order.floor_s))
        line.served_s = max(line.served_s, order.floor_s)
    line.floor_s = max(line.floor_s, _own_least_s(gpu, line, now, default=line.floor_s))
    client.service.served_s = max(client.service.served_s, line.floor_s)


def unqueue(gpu: GpuQueue, client: Client, now: float) -> None:
    """The client no longer waits."""
    line = client.service.line
    _charge(line, now)
    _disclaim(gpu, client)
    del gpu.order.waiting[client.id]
    assert client.service.entry is not None
    del line.waiting[bisect_left(line.waiting, client.service.entry)]
    client.service.entry = None
    if gpu.order.front is client:
        gpu.order.room_s = NEVER
    if line.place is not None and not line.waiting:
        _unplace(gpu, line)


def _disclaim(gpu: GpuQueue, client: Client) -> None:
    if gpu.order.claim is client:
        gpu.order.claim = None


def _place(gpu: GpuQueue, line: OwnerLine) -> None:
    order = gpu.order
    order.requests += 1
    entry: PlaceEntry = (line.served_s, order.requests, line)
    line.place = entry
    places = order.places
    if places and places[-1] > entry:
        insort(places, entry)
    else:
        places.append(entry)


def _unplace(gpu: GpuQueue, line: OwnerLine) -> None:
    order = gpu.order
    assert line.place is not None
    del order.places[bisect_left(order.places, line.place)]
    line.place = None


def order_again(gpu: GpuQueue, now: float) -> None:
    """Clients came from another queue: lines up all clients again, equal ones in the order of their requests.
    The oldest turn is the anchor's."""
    order = gpu.order
    order.places = []
    for line in order.lines.values():
        _charge(line, now)
        line.running = 0
        line.has_anchor = False
        line.waiting = []
        line.place = None
    for client in gpu.turns.running.values():
        client.service.line.running += not client.is_program
    order.anchor = next((client for client in gpu.turns.running.values() if not client.is_program), None)
    if order.anchor is not None:
        order.anchor.service.line.has_anchor = True
    waiting = sorted(order.waiting.values(), key=lambda client: client.turn.eligible_s)
    order.waiting = {}
    for number, client in enumerate(waiting, order.requests):
        order.waiting[client.id] = client
        client.service.entry = (client.service.served_s, number, client)
        insort(client.service.line.waiting, client.service.entry)
    order.requests += len(waiting)
    for client in waiting:
        if client.service.line.place is None and not client.service.line.has_anchor:
            _place(gpu, client.service.line)


def move(client: Client, source: GpuQueue, target: GpuQueue) -> None:
    """A client that waits moved; both queues must be ordered again."""
    _disclaim(source, client)
    target.order.waiting[client.id] = source.order.waiting.pop(client.id)


def carry(client: Client, source: GpuQueue, served_s: float, target: GpuQueue) -> None:
    """The client moved, and is the first of its owner there: it leads the least of the other queue by as much."""
    if client.service.line.clients == 1:
        client.service.line.served_s = target.order.floor_s + max(0.0, served_s - source.order.floor_s)


# Turns


def begin(gpu: GpuQueue, client: Client, guest_until_s: float | None, now: float) -> None:
    """The client, which waits no longer, begins a turn: as the anchor, or as a guest until a time."""
    client.service.guest_until_s = guest_until_s
    if client.is_program:
        return
    line = client.service.line
    _charge(line, now)
    line.running += 1
    if guest_until_s is None:
        _set_anchor(gpu, client, now)


def owe_turn(client: Client) -> None:
    """The client was the first to wait: its turn lasts a quantum, although it is not the anchor."""
    client.service.guest_until_s = None


def inherit(gpu: GpuQueue, client: Client, now: float) -> None:
    """The anchor has stopped, and the front waits for the turn of this client."""
    _charge(client.service.line, now)
    _set_anchor(gpu, client, now)


def end(gpu: GpuQueue, client: Client, late_s: float, now: float, released: bool) -> None:
    """The client, which runs no longer, ended a turn, `late_s` after it was asked to; `released`: before that. If it is
    the anchor it stays the anchor until another client is, so that its owner waits behind all others."""
    order = gpu.order
    line = client.service.line
    client.service.served_s += now - client.turn.begun_s
    client.service.ran_s = now
    client.service.released = released
    if client.is_program:
        return
    _charge(line, now)
    line.running -= 1
    line.ran_s = now
    line.floor_s = max(line.floor_s, min(client.service.served_s, _own_least_s(gpu, line, now, default=NEVER)))
    client.service.served_s = _reduced_s(client.service.served_s, line.floor_s, order.lead_s)
    order.floor_s = max(order.floor_s, min(line.served_s, _least_s(gpu, now, default=NEVER)))
    reduced_s = _forget_luck(order, line, line.served_s, order.lead_s + _kept_s(client, late_s, now))
    if line.place is None:
        line.served_s = reduced_s
    elif reduced_s < line.served_s:
        _unplace(gpu, line)
        line.served_s = reduced_s
        _place(gpu, line)


def _kept_s(client: Client, late_s: float, now: float) -> float:
    """What a turn took from others because it was kept: that is not luck, and stays in the account of the owner."""
    turn_s = now - client.turn.begun_s
    return turn_s if late_s > max(_PROMPT_S, _PROMPT_RATIO * turn_s) else 0.0


def _forget_luck(order: ServiceOrder, line: OwnerLine, served_s: float, lead_s: float) -> float:
    """Returns the account of an owner, without a part of the luck that it is above the others' by."""
    forgotten_s = min(line.luck_s, served_s - _reduced_s(served_s, order.floor_s, lead_s))
    line.luck_s -= forgotten_s
    return served_s - forgotten_s


def _reduced_s(served_s: float, floor_s: float, lead_s: float) -> float:
    excess_s = served_s - floor_s - lead_s
    return served_s if excess_s <= 0.0 else floor_s + lead_s + min(excess_s / 2, 2 * lead_s)


def hand_over(gpu: GpuQueue, old: Client, new: Client, now: float) -> None:
    """`end`, `unqueue` and `begin` where turns are exclusive, and `old` is the anchor: the hot path."""
    order, ending, beginning = gpu.order, old.service, new.service
    line, other, lead_s = ending.line, beginning.line, order.lead_s
    served_s = ending.served_s + now - old.turn.begun_s
    ending.ran_s = now
    ending.released = True
    waiting = line.waiting
    least_s = waiting[0][0] if waiting and waiting[0][0] < served_s else served_s
    if least_s > line.floor_s:
        line.floor_s = least_s
    ending.served_s = served_s if served_s <= line.floor_s + lead_s else _reduced_s(served_s, line.floor_s, lead_s)
    line.served_s = served_s = line.served_s + now - line.since_s
    line.since_s = now
    order.anchor = new
    order.room_s = NEVER
    beginning.guest_until_s = None
    beginning.entry = None
    # It is the first of its owner, whose place is the first one.
    del order.waiting[new.id]
    del other.waiting[0]
    if line is other:
        if served_s > order.floor_s:
            order.floor_s = served_s
        return
    least_s = other.served_s if other.served_s < served_s else served_s
    if least_s > order.floor_s:
        order.floor_s = least_s
    if served_s > order.floor_s + lead_s:
        line.served_s = _forget_luck(order, line, served_s, lead_s)
    del order.places[0]
    other.place = None
    other.running = 1
    other.has_anchor = True
    other.since_s = line.ran_s = now
    line.running = 0
    line.has_anchor = False
    if waiting:
        _place(gpu, line)


def _set_anchor(gpu: GpuQueue, client: Client, now: float) -> None:
    """The client has a turn as the front. The owner of the last anchor waits again, if its other clients do."""
    order = gpu.order
    line, before = client.service.line, order.anchor
    order.anchor = client
    if line.has_anchor:
        return
    if before is not None:
        last = before.service.line
        _charge(last, now)
        last.has_anchor = False
        if last.waiting:
            _place(gpu, last)
    line.has_anchor = True
    if line.place is not None:
        _unplace(gpu, line)


def _charge(line: OwnerLine, now: float) -> None:
    """Brings an owner's account up to now. Must be called before anything changes that it depends on."""
    if line.running and (line.has_anchor or not line.waiting):
        line.served_s += now - line.since_s
        if not line.has_anchor:
            line.luck_s += now - line.since_s
    line.since_s = now


def _least_s(gpu: GpuQueue, now: float, default: float) -> float:
    """The least service of the owners that wait or run."""
    places = gpu.order.places
    least_s = places[0][0] if places else NEVER
    for client in gpu.turns.running.values():
        if not client.is_program:
            least_s = min(least_s, service_s(client.service.line, now))
    return default if least_s == NEVER else least_s


def _own_least_s(gpu: GpuQueue, line: OwnerLine, now: float, default: float) -> float:
    """The least service of the clients of one owner that wait or run."""
    least_s = line.waiting[0][0] if line.waiting else NEVER
    for client in gpu.turns.running.values():
        if client.service.line is line:
            least_s = min(least_s, own_service_s(client, now))
    return default if least_s == NEVER else least_s
