"""One configuration key: its default, what it means, and what a good value looks like. Pure."""

import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from gpucommons.base.decimal_text import parse_decimal


class ConfigError(Exception):
    """One line that names the key and says what to do."""


def option(
    default: Any,
    help: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
    check: Callable[[str], str | None] | None = None,
    aliases: tuple[str, ...] = (),
    join_aliases: Callable[[Mapping[str, str]], str] | None = None,
) -> Any:
    """A dataclass field that documents and guards itself.

    `check` returns what is wrong with a text, or None. `aliases` are environment variables of other programs that
    set the same thing, the last one winning; `join_aliases` makes one text of those that are set instead.
    """
    metadata = {
        "help": help,
        "minimum": minimum,
        "maximum": maximum,
        "choices": choices,
        "check": check,
        "aliases": aliases,
        "join_aliases": join_aliases,
    }
    return field(default=default, metadata=metadata)


def nvshare_aliases(name: str) -> tuple[str, ...]:
    """The variable of nvshare and its twin of XPUShare, as nvshare has been called since; the twin is in force."""
    return (f"NVSHARE_{name}", f"XPUSHARE_{name}")


def check_address(text: str) -> str | None:
    """HOST:PORT, [IPv6]:PORT or :PORT; or unix:/PATH."""
    if text.startswith("unix:"):
        return check_unix_address(text)
    host, colon, port = text.rpartition(":")
    if not colon or not _is_port(port):
        return "wants HOST:PORT with a port from 0 to 65535, such as 127.0.0.1:9460"
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        return "wants an IPv6 address in brackets, such as [::1]:9460"
    return None


def _is_port(text: str) -> bool:
    number = parse_decimal(text)
    return number is not None and number <= 65535


def join_bind_and_port(given: Mapping[str, str], bind_name: str, port_name: str, default_port: int) -> str:
    """HOST:PORT from two variables, one for the host and one for the port. Either may be absent.

    The host variable may also hold HOST:PORT. Raises a ConfigError that names the variable at fault.
    """
    bind, port = given.get(bind_name, "127.0.0.1"), given.get(port_name)
    if port is not None and not _is_port(port):
        raise ConfigError(f"{port_name}: expected a port from 0 to 65535, not {port!r}")
    if _is_host(bind):
        host = f"[{bind}]" if ":" in bind else bind
        return f"{host}:{default_port if port is None else port}"
    if bind.startswith("unix:") or " " in bind or check_address(bind) is not None:
        raise ConfigError(f"{bind_name}: expected a host or HOST:PORT, such as 0.0.0.0, not {bind!r}")
    if port is not None and int(port) != int(bind.rpartition(":")[2]):
        raise ConfigError(f"{port_name}: {port} contradicts {bind_name}={bind}; unset one of the two")
    return bind


def _is_host(text: str) -> bool:
    """A name or an address without a port. Empty is every address, as for the programs that read such a variable."""
    if ":" not in text:
        return text.isprintable() and " " not in text
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def check_address_or_port(text: str) -> str | None:
    """As check_address, or a port alone."""
    return None if _is_port(text) else check_address(text)


def check_unix_address(text: str) -> str | None:
    """unix:/PATH"""
    return None if text.startswith("unix:/") else "wants unix:/PATH, such as unix:/run/gpucommons/api.sock"


def check_url(text: str) -> str | None:
    """http:// or https:// and a host"""
    scheme, separator, rest = text.partition("://")
    if scheme in ("http", "https") and separator and rest.strip("/"):
        return None
    return "wants a URL, such as http://127.0.0.1:9090"


def check_expression(text: str) -> str | None:
    """a regular expression"""
    try:
        re.compile(text)
    except re.error as error:
        return f"is not a regular expression: {error}"
    return None
