"""A dialect that yields a series twice fails its test. The exposition drops the second: the text does not show it."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def no_series_twice(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    twice = [record.getMessage() for record in caplog.get_records("call") if "with the same labels" in record.msg]
    assert not twice
