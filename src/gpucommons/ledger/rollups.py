"""The three layers to which each amount is added (minute, hour, day), and how long each is kept.

All three are written in one transaction, so that they always agree, even if the clock jumps. A report reads days
where possible, hours at their edges and minutes at the edges of those.
"""

from typing import NamedTuple

DAY_S = 86_400


class Layer(NamedTuple):
    name: str
    seconds: int

    def start_of(self, minute: int) -> int:
        """The bucket of a minute, named by its first second."""
        return minute * 60 // self.seconds * self.seconds


MINUTE, HOUR, DAY = Layer("minute", 60), Layer("hour", 3600), Layer("day", DAY_S)
LAYERS = (MINUTE, HOUR, DAY)


class Retention(NamedTuple):
    """How long each layer is kept, in days."""

    minutes_d: float = 2.0
    hours_d: float = 400.0
    days_d: float = 1830.0

    def cutoffs(self, now_wall_s: float) -> tuple[tuple[Layer, int], ...]:
        """For each layer, the first bucket that is kept."""
        kept = zip(LAYERS, self, strict=True)
        return tuple((layer, int((now_wall_s - days * DAY_S) // layer.seconds * layer.seconds)) for layer, days in kept)


class Piece(NamedTuple):
    """Part of a period, [since_s, until_s), to be read from one layer."""

    layer: Layer
    since_s: int
    until_s: int


def pieces(since_s: int, until_s: int, kept_since_s: dict[Layer, int]) -> list[Piece]:
    """Read a period from the coarsest layers that fit, each second once.

    `kept_since_s` is the first second that each layer still has. Where a finer layer was pruned, the edge is
    widened to the bucket of the next coarser layer, so that no usage is missing from every report.
    """
    return _cut(since_s, until_s, list(reversed(LAYERS)), kept_since_s)


def _cut(since_s: int, until_s: int, layers: list[Layer], kept_since_s: dict[Layer, int]) -> list[Piece]:
    if since_s >= until_s or not layers:
        return []
    layer, finer = layers[0], layers[1:]
    width = layer.seconds
    first, last = -(-since_s // width) * width, until_s // width * width
    if not finer or since_s < kept_since_s[finer[0]]:
        # The finer layer was pruned here: take the whole bucket.
        first = since_s // width * width
    if not finer or last < kept_since_s[finer[0]]:
        last = -(-until_s // width) * width
    if first >= last:
        return _cut(since_s, until_s, finer, kept_since_s)
    return [
        *_cut(since_s, min(first, until_s), finer, kept_since_s),
        Piece(layer, first, last),
        *_cut(max(last, since_s), until_s, finer, kept_since_s),
    ]
