"""Modules are loaded without the garbage collector, which is back afterwards, also after a failed import."""

import gc

import pytest

from gpucommons.base.loading import loading


@pytest.mark.parametrize("fails", [False, True])
def test_the_collector_is_off_while_modules_are_loaded(fails: bool) -> None:
    frozen = gc.get_freeze_count()
    try:
        with pytest.raises(ImportError) if fails else loading(), loading():
            assert not gc.isenabled()
            if fails:
                raise ImportError
        assert gc.isenabled()
        assert gc.get_freeze_count() > frozen, "what was loaded is not examined again"
    finally:
        gc.unfreeze()
