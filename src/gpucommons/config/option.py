"""One configuration key: its default, what it means, and what a good value looks like. Pure."""

import re
from collections.abc import Callable
from dataclasses import field
from typing import Any


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
    from_alias: Callable[[str], str] = str,
) -> Any:
    """A dataclass field that documents and guards itself.

    `check` returns what is wrong with a text, or None. `aliases` are environment variables of older
    programs that set the same thing; `from_alias` puts their text as we write it.
    """
    metadata = {
        "help": help,
        "minimum": minimum,
        "maximum": maximum,
        "choices": choices,
        "check": check,
        "aliases": aliases,
        "from_alias": from_alias,
    }
    return field(default=default, metadata=metadata)


def check_address(text: str) -> str | None:
    """HOST:PORT, [IPv6]:PORT or :PORT; or unix:/PATH."""
    if text.startswith("unix:"):
        return check_unix_address(text)
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or not 0 <= int(port) <= 65535:
        return "wants HOST:PORT with a port from 0 to 65535, such as 127.0.0.1:9460"
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        return "wants an IPv6 address in brackets, such as [::1]:9460"
    return None


def with_port(text: str, port: int) -> str:
    """An address of its own, or a host alone with the port that goes without saying."""
    if check_address(text) is None:
        return text
    return f"[{text}]:{port}" if ":" in text else f"{text}:{port}"


def check_address_or_port(text: str) -> str | None:
    """As check_address, or a port alone."""
    return None if text.isdigit() and int(text) <= 65535 else check_address(text)


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
