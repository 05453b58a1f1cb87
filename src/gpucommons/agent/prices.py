"""The prices of the accounts, from the settings. Pure."""

from gpucommons.config.accounts import AccountsSettings
from gpucommons.config.prices import in_billionths, parse_prices
from gpucommons.model.prices import Prices


def prices_of(settings: AccountsSettings) -> Prices:
    return Prices(
        parse_prices(settings.price_per_gpu_hour),
        _exact(settings.price_per_kwh),
        settings.currency,
        _exact(settings.co2_g_per_kwh),
    )


def _exact(number: float) -> int | None:
    """In billionths. 0 is not set."""
    return in_billionths(number) if number else None
