"""The layers from which a period is read: every second once."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gpucommons.ledger.schema import DAY, HOUR, LAYERS, MINUTE, Layer, pieces
from unhurried import unhurried

times = st.integers(0, 400 * 86_400)


@unhurried()
@given(times, times, st.lists(times, min_size=3, max_size=3))
def test_pieces_are_contiguous_and_cover_the_period(one: int, other: int, kept: list[int]) -> None:
    since_s, until_s = sorted((one, other))
    kept_since: dict[Layer, int] = dict(zip(LAYERS, sorted(kept, reverse=True), strict=True))
    found = pieces(since_s, until_s, kept_since)
    for before, after in pairwise(found):
        assert before.until_s == after.since_s
    for piece in found:
        assert piece.since_s < piece.until_s
        assert piece.since_s % piece.layer.seconds == piece.until_s % piece.layer.seconds == 0
    if since_s < until_s:
        assert found[0].since_s <= since_s
        assert found[-1].until_s >= until_s
        finest_start = next(layer for layer in LAYERS if since_s >= kept_since[layer] or layer is DAY)
        assert found[0].since_s > since_s - finest_start.seconds


def test_a_long_period_is_read_in_days_except_its_edges() -> None:
    everything = dict.fromkeys(LAYERS, 0)
    since_s, until_s = 3 * 86_400 - 3600 - 120, 90 * 86_400 + 7200 + 60
    assert [(p.layer, (p.until_s - p.since_s) // p.layer.seconds) for p in pieces(since_s, until_s, everything)] == [
        (MINUTE, 2),
        (HOUR, 1),
        (DAY, 87),
        (HOUR, 2),
        (MINUTE, 1),
    ]
