"""Memory and descriptors do not grow. `python -m bench.nvml_day` runs a whole day."""

import logging
import tracemalloc
from collections.abc import Iterator

import pytest

from fakes.nvml.day import footprint, live_through
from fakes.nvml.rig import Rig

WARM_UP_S, MEASURED_S = 1200, 2400


@pytest.fixture
def _measured() -> Iterator[None]:
    """Without logging: pytest keeps every record, which would grow."""
    logging.disable(logging.CRITICAL)
    tracemalloc.start()
    yield
    tracemalloc.stop()
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("_measured")
def test_an_hour_of_changes_leaks_nothing(rig: Rig) -> None:
    live_through(rig, 0, WARM_UP_S)
    before = footprint(rig)
    held, _ = tracemalloc.get_traced_memory()
    good = live_through(rig, WARM_UP_S, MEASURED_S)
    after = footprint(rig)
    grown, _ = tracemalloc.get_traced_memory()
    assert good > MEASURED_S / 2
    assert (after.descriptors, after.threads) == (before.descriptors, before.threads)
    assert (after.gpm_samples, after.event_sets, after.references) == (
        before.gpm_samples,
        before.event_sets,
        before.references,
    )
    assert grown - held < 50_000
