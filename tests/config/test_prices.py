"""[accounts]: a price as a number, as a table and as text; what is refused, and with which line."""

from pathlib import Path

import pytest

from gpucommons.agent.setting_rules import prices_of
from gpucommons.config.load import load
from gpucommons.config.option import ConfigError
from gpucommons.model.accounts import BILLION, NO_PRICES, Prices

TENTH = BILLION // 10


def prices(tmp_path: Path, text: str, environment: dict[str, str] | None = None) -> Prices:
    file = tmp_path / "config.toml"
    file.write_text(f"[accounts]\n{text}\n")
    return prices_of(load(file, environment or {}, {}).settings.accounts)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ()),
        ("price_per_gpu_hour = 2", (("*", 2 * BILLION),)),
        ("price_per_gpu_hour = 0.1", (("*", TENTH),)),
        ('price_per_gpu_hour = "0.1"', (("*", TENTH),)),
        (
            'price_per_gpu_hour = { "*H100*" = 2, "Tesla T4" = 0, "*" = 0.1 }',
            (("*H100*", 2 * BILLION), ("Tesla T4", 0), ("*", TENTH)),
        ),
    ],
)
def test_a_number_or_a_table(tmp_path: Path, text: str, expected: tuple[tuple[str, int], ...]) -> None:
    assert prices(tmp_path, text).per_gpu_hour == expected


def test_a_variable(tmp_path: Path) -> None:
    given = {"GPUCOMMONS_ACCOUNTS_PRICE_PER_GPU_HOUR": "*H100*=2, *=0.1"}
    assert prices(tmp_path, "", given).per_gpu_hour == (("*H100*", 2 * BILLION), ("*", TENTH))


def test_what_is_not_set_is_none(tmp_path: Path) -> None:
    assert prices(tmp_path, "") == NO_PRICES
    found = prices(tmp_path, 'price_per_kwh = 0.1\ncurrency = "€"\nco2_g_per_kwh = 380')
    assert found == Prices((), TENTH, "€", 380 * BILLION)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("price_per_gpu_hour = -1", "invalid price -1 for '*': use 0 to"),
        ('price_per_gpu_hour = { "*H100*" = -0.5 }', "invalid price -0.5 for '*H100*'"),
        ('price_per_gpu_hour = { "*H100*" = "two" }', "invalid price 'two' for '*H100*': use a number"),
        ('price_per_gpu_hour = { "*H100*" = true }', "use a number"),
        ('price_per_gpu_hour = { "" = 1 }', "invalid pattern ''"),
        ('price_per_gpu_hour = { "a,b" = 1 }', "invalid pattern 'a,b'"),
        ("price_per_gpu_hour = inf", "use 0 to"),
        ("price_per_gpu_hour = nan", "use 0 to"),
        ("price_per_gpu_hour = true", "expected a string"),
        ("price_per_gpu_hour = [1]", "expected a string"),
        ('price_per_gpu_hour = "much"', "invalid price 'much'"),
        ('price_per_gpu_hour = "H100=2, =3"', "invalid price '=3': use PATTERN=PRICE"),
        ("price_per_kwh = -0.1", "expected at least 0, got -0.1"),
        ("price_per_kwh = nan", "expected a finite number"),
        ("co2_g_per_kwh = -1", "expected at least 0"),
        ("currency = 5", "expected a string, got 5"),
        ('currency = "much money"', "invalid currency"),
        (r'currency = "\u001b[1m"', "invalid currency"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        prices(tmp_path, text)
    assert words in str(refused.value)
    assert "accounts." in str(refused.value)
    assert "\n" not in str(refused.value)
