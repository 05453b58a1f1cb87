"""Checks that no two drop-in listeners use the same port, before any of them is opened. Pure."""

from collections.abc import Iterable
from itertools import combinations

from gpucommons.base.address import Address, parse_address
from gpucommons.config.option import ConfigError

_EVERY_INTERFACE = frozenset({"", "0.0.0.0", "::"})


def check_ports(listeners: Iterable[tuple[str, str]]) -> None:
    """`listeners` are addresses and their dialects. Raises ConfigError, one line, if two of them clash."""
    for (address, dialect), (other_address, other_dialect) in combinations(listeners, 2):
        if _clash(parse_address(address), parse_address(other_address)):
            raise ConfigError(
                f"the {dialect} listener on {address} and the {other_dialect} listener on {other_address} use the same "
                f"port: give one of them another ({_settings(dialect)}; {_settings(other_dialect)})"
            )


def _clash(one: object, other: object) -> bool:
    if not isinstance(one, Address) or not isinstance(other, Address) or one.port != other.port or one.port == 0:
        return False
    return one.host == other.host or not _EVERY_INTERFACE.isdisjoint({one.host, other.host})


def _settings(dialect: str) -> str:
    variable = f" or {dialect.upper()}_METRICS_ADDR" if dialect in ("nvshare", "xpushare") else ""
    return f"listeners.{dialect}{variable}"
