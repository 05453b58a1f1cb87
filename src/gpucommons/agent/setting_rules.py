"""What settings mean together: the rules of owners, the prices, ports that must differ, and the simulation.

A mistake is a ConfigError of one line at the start, in the agent and in `check-config` alike. Commands import this
module: it imports no source and no service.
"""

from collections.abc import Iterable
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from gpucommons.base.address import Address, parse_address
from gpucommons.config.accounts import AccountsSettings, in_billionths, parse_prices
from gpucommons.config.option import ConfigError
from gpucommons.config.settings import OwnersSettings
from gpucommons.model.accounts import Prices
from gpucommons.owners.owner import OwnerRules, SiteRuleError, parse_order, parse_site_rules

# A simulation alone needs the scenarios.
if TYPE_CHECKING:
    from gpucommons.simulation.scenario import Scenario

# The rules of attribution from the settings. A mistake in them is a ConfigError of one line at the start.


def owner_rules(settings: OwnersSettings) -> OwnerRules:
    try:
        order = parse_order(settings.order)
    except ValueError as error:
        raise ConfigError(f"owners.order: {error}") from error
    labels = tuple(label.strip() for label in settings.labels.split(",") if label.strip())
    if not settings.rules_file:
        return OwnerRules(order, labels)
    try:
        site = parse_site_rules(Path(settings.rules_file).read_text("utf-8"))
    except (OSError, UnicodeDecodeError, SiteRuleError) as error:
        raise ConfigError(f"owners.rules_file: {settings.rules_file}: {error}") from error
    return OwnerRules(order, labels, site)


# The prices of the accounts, from the settings. Pure.


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


# Checks that no two drop-in listeners use the same port, before any of them is opened. Pure.

_EVERY_INTERFACE = frozenset({"", "0.0.0.0", "::"})


def check_ports(listeners: Iterable[tuple[str, str]]) -> None:
    """`listeners` are addresses and their dialects. Raises ConfigError, one line, if two of them clash."""
    for (address, dialect), (other_address, other_dialect) in combinations(listeners, 2):
        if _clash(parse_address(address), parse_address(other_address)):
            raise ConfigError(
                f"the {dialect} listener on {address} and the {other_dialect} listener on {other_address} use the same "
                f"port: give one of them another ({_settings(dialect)}; {_settings(other_dialect)})"
            )


def _clash(address: object, other: object) -> bool:
    if (
        not isinstance(address, Address)
        or not isinstance(other, Address)
        or address.port != other.port
        or address.port == 0
    ):
        return False
    return address.host == other.host or not _EVERY_INTERFACE.isdisjoint({address.host, other.host})


def _settings(dialect: str) -> str:
    variable = f" or {dialect.upper()}_METRICS_ADDR" if dialect in ("nvshare", "xpushare") else ""
    return f"listeners.{dialect}{variable}"


# The node that is simulated in place of this machine.


def find_scenario(name: str | None) -> "Scenario | None":
    """The scenario of `--simulate`. Raises ConfigError."""
    if name is None:
        return None
    from gpucommons.simulation.scenarios import SCENARIOS

    if name not in SCENARIOS:
        raise ConfigError(f"--simulate: unknown scenario {name!r}; use {' or '.join(SCENARIOS)}")
    return SCENARIOS[name]
