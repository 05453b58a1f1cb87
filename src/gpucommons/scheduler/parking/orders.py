"""What people and the agent itself order: park this program, bring that one back. It moves nothing.

An order marks the programs that it reaches; the planner decides when they move.
"""

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from time import monotonic
from typing import NamedTuple, TypeVar

from gpucommons.parking.values import ParkRefusal, ParkStage, WhyNot
from gpucommons.pauser.client import Pauser
from gpucommons.scheduler.parking.held import HeldProgram, HeldPrograms
from gpucommons.scheduler.parking.lot import Lot
from gpucommons.scheduler.parking.park_log import ParkLog

Row = TypeVar("Row")


class ParkOrder(NamedTuple):
    """The answer to an order: the names of the programs that it reaches, and why others are refused."""

    keys: tuple[str, ...]
    names: tuple[str, ...]
    refused: tuple[str, ...]


class ParkOrders:
    """`on_order` is called after each order, so that it is planned at once."""

    def __init__(
        self, held: HeldPrograms, lot: Lot, park_log: ParkLog, pauser: Pauser, on_order: Callable[[], None]
    ) -> None:
        self._held = held
        self._lot = lot
        self._log = park_log
        self._pauser = pauser
        self._on_order = on_order

    def park(self, target: str, uid: int | None) -> ParkOrder:
        """`uid` is that of the person who asks; None: an admin. ValueError: no such program, or not theirs."""
        found = [held for held in self._held if target in held.names]
        return self._ask(_of_user(target, uid, [(held.program.uid, held) for held in found]))

    def park_processes(self, pids: AbstractSet[int]) -> ParkOrder:
        """The programs of these processes, for the agent itself. Nothing is reached if none of them is a program."""
        return self._ask([held for held in self._held if not pids.isdisjoint(held.pids)])

    def _ask(self, allowed: Sequence[HeldProgram]) -> ParkOrder:
        refused = []
        for held in allowed:
            self._held.try_again(held.program)
            refusal = self._held.obstacle(held, self._lot.keys, monotonic()) or self._unavailable()
            if refusal is not None:
                self._log.refused_program(held.program, refusal)
                refused.append(f"{held.program.display_name}: {refusal.sentence}")
            else:
                held.asked = True
        reached = [held.program for held in allowed if held.asked]
        self._on_order()
        return ParkOrder(tuple(p.key for p in reached), tuple(p.display_name for p in reached), tuple(refused))

    def _unavailable(self) -> ParkRefusal | None:
        reason = self._pauser.reason
        return ParkRefusal(WhyNot.UNAVAILABLE, reason) if reason else None

    def wake(self, target: str, uid: int | None) -> ParkOrder:
        """As `park`."""
        found = [spot for spot in self._lot if target in spot.names]
        allowed = _of_user(target, uid, [(spot.uid, spot) for spot in found])
        refused, reached = [], []
        for spot in allowed:
            if spot.stage is ParkStage.STRANDED:
                refused.append(f"{spot.name}: the driver could not restore it; end the process")
            elif stopped := spot.why_stopped():
                refused.append(f"{spot.name}: {stopped}; continue it first")
            else:
                spot.retry_s = 0.0
                spot.go_on(monotonic())
                reached.append(spot)
        self._on_order()
        return ParkOrder(tuple(s.key for s in reached), tuple(s.name for s in reached), tuple(refused))


def _of_user(target: str, uid: int | None, found: Sequence[tuple[int | None, Row]]) -> list[Row]:
    if not found:
        raise ValueError(f"no such program {target!r}: see 'gpucommons scheduler status' and 'gpucommons parked'")
    rows = [row for owner, row in found if uid is None or owner == uid]
    if not rows:
        raise ValueError(f"{target} is refused: it is another user's program")
    return rows
