"""Durations as people write and read them."""

import pytest

from gpucommons.base.periods import parse_duration, spoken_duration


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30m", 1800), ("2h", 7200), ("1h30m", 5400), ("1.5h", 5400), (" 1d 2h ", 93600)]
)
def test_written(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "2", "h", "2 fortnights", "-1h", "0s", "400d", "1h30", "1e3s", "２h"])
def test_not_a_duration(text: str) -> None:
    with pytest.raises(ValueError, match="invalid duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.04, "0.0 s"),
        (9.6, "9.6 s"),
        (40.4, "40 s"),
        (150, "2 min"),
        (3599, "1 h"),
        (7800, "2 h 10 min"),
        (86_400 * 4 + 3 * 3600, "4 d 3 h"),
    ],
)
def test_spoken(seconds: float, text: str) -> None:
    assert spoken_duration(seconds) == text
