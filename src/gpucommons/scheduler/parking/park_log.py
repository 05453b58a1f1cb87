"""What became of parking: the last events, and the counts and durations of moves."""

import logging
import time
from collections import Counter, deque
from time import monotonic
from typing import Final

from gpucommons.base.histogram import Histogram
from gpucommons.model.parking import ParkEvent
from gpucommons.model.sharing import MOVE_BUCKETS
from gpucommons.parking.idleness import ParkedCpu
from gpucommons.parking.values import ParkRefusal
from gpucommons.scheduler.parking.spot import Spot, spot_of
from gpucommons.scheduler.programs.jobs import Program

log = logging.getLogger(__name__)

_MOST_EVENTS: Final = 64


class ParkLog:
    def __init__(self) -> None:
        self.events: deque[ParkEvent] = deque(maxlen=_MOST_EVENTS)
        self.parks = 0
        self.wakes = 0
        self.refusals: Counter[str] = Counter()
        self.park_seconds = Histogram(MOVE_BUCKETS)
        self.wake_seconds = Histogram(MOVE_BUCKETS)

    def parked(self, spot: Spot, duration_s: float) -> None:
        self.parks += 1
        self.park_seconds.observe(duration_s)
        self._add("parked", spot, duration_s, f"{_gib(spot.bytes)} moved to host memory ({spot.cause})")

    def woken(self, spot: Spot, moved_s: float, waited_s: float) -> None:
        """`moved_s` is the time of the move itself, `waited_s` how long the program waited for room before it."""
        self.wakes += 1
        self.wake_seconds.observe(moved_s)
        taken_s = waited_s + moved_s
        waited = f", after {waited_s:.1f} s of waiting for room" if waited_s > 1 else ""
        self._add("woken", spot, taken_s, f"{_gib(spot.bytes)} is back on the GPU after {taken_s:.1f} s{waited}")

    def refused(self, spot: Spot, refusal: ParkRefusal) -> None:
        self.refusals[refusal.why] += 1
        self._add("refused", spot, 0.0, refusal.sentence, refusal.why)

    def refused_program(self, program: Program, refusal: ParkRefusal) -> None:
        """For a program whose move has not begun."""
        self.refused(spot_of(program, "", ParkedCpu(0.0), monotonic(), time.time()), refusal)

    def stranded(self, spot: Spot, duration_s: float) -> None:
        self._add("stranded", spot, duration_s, "the driver could not restore it; end the process")

    def _add(self, kind: str, spot: Spot, duration_s: float, sentence: str, why: str = "") -> None:
        wall_s = time.time()
        self.events.append(
            ParkEvent(
                f"{wall_s:.3f}/{kind}/{spot.key}",
                kind,
                wall_s,
                spot.key,
                spot.name,
                spot.user,
                spot.uid,
                next(iter(spot.memory), ""),
                spot.bytes,
                duration_s,
                sentence,
                why,
            )
        )
        log.info("parking: %s: %s: %s", kind, spot.name, sentence)


def _gib(amount: int) -> str:
    return f"{amount / (1 << 30):.1f} GiB"
