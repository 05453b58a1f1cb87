"""Memory and descriptors do not grow. `python -m bench.nvml_day` runs a whole day."""

import logging
import tracemalloc
from collections.abc import Iterator

import pytest

from fakes.nvml.day import Footprint, footprint, live_through
from fakes.nvml.rig import Rig

pytestmark = pytest.mark.long

WARM_UP_S, MEASURED_S, SPANS = 1200, 800, 3
# A leak grows in every span; a table that is enlarged once, in one.
GROWTH_BYTES = 15_000


@pytest.fixture
def _measured() -> Iterator[None]:
    """Without logging: pytest keeps every record, which would grow."""
    logging.disable(logging.CRITICAL)
    tracemalloc.start()
    yield
    tracemalloc.stop()
    logging.disable(logging.NOTSET)


def at_rest(rig: Rig) -> tuple[Footprint, int]:
    """The footprint and the traced memory while nothing runs on the GPUs."""
    rig.fake.replace("gpus 4")
    rig.read()
    return footprint(rig), tracemalloc.get_traced_memory()[0]


@pytest.mark.usefixtures("_measured")
def test_an_hour_of_changes_leaks_nothing(rig: Rig) -> None:
    live_through(rig, 0, WARM_UP_S)
    before, held = at_rest(rig)
    growths = []
    for span in range(SPANS):
        good = live_through(rig, WARM_UP_S + span * MEASURED_S, MEASURED_S)
        assert good > MEASURED_S / 2
        after, now_held = at_rest(rig)
        growths.append(now_held - held)
        held = now_held
    assert (after.descriptors, after.threads) == (before.descriptors, before.threads)
    assert (after.gpm_samples, after.event_sets, after.references) == (
        before.gpm_samples,
        before.event_sets,
        before.references,
    )
    assert min(growths) < GROWTH_BYTES, growths
