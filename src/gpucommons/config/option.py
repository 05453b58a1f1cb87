"""One configuration key: its default, its help text and its limits; and mistakes in a file. Pure."""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from typing import Any

from gpucommons.base.address import Address, AddressError, is_host, parse_port, parse_tcp_address
from gpucommons.base.text import USER_PLACE, is_mail_address


class ConfigError(Exception):
    """One line: the key and its value, why the value is wrong, and what to do.

    `line` is the line of the file; None where it is not known, or where several settings contradict each other.
    `section` is the section of the file; empty for a mistake elsewhere. `more` are further mistakes of the same file.
    """

    def __init__(self, message: str, line: int | None = None, section: str = "") -> None:
        super().__init__(message)
        self.line = line
        self.section = section
        self.more: tuple[ConfigError, ...] = ()


class Mistakes:
    """Collects the mistakes of several checks, so that all are reported at once."""

    def __init__(self) -> None:
        self._found: list[ConfigError] = []

    @contextmanager
    def collect(self) -> Iterator[None]:
        try:
            yield
        except ConfigError as error:
            self._found += [error, *error.more]

    @property
    def sections(self) -> frozenset[str]:
        """Those that have a mistake; an empty name for mistakes outside of the file."""
        return frozenset(error.section for error in self._found)

    def raise_any(self) -> None:
        """Raises the first one in the file, which has the others; those without a line come last."""
        if self._found:
            first, *more = sorted(self._found, key=lambda error: math.inf if error.line is None else error.line)
            first.more = tuple(more)
            raise first


def option(
    default: Any,
    help: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
    check: Callable[[str], object] | None = None,
    aliases: tuple[str, ...] = (),
    join_aliases: Callable[[Mapping[str, str]], str] | None = None,
    as_text: Callable[[object], object] | None = None,
) -> Any:
    """A dataclass field with its documentation and its limits.

    `check` raises ValueError for a wrong text; an empty text is not checked. `aliases` are environment variables of
    other programs with the same meaning: the last one that is set is in force, or `join_aliases` combines them.
    `as_text` makes the text of a key that may also be a number or a table in the file.
    """
    metadata = {
        "help": help,
        "minimum": minimum,
        "maximum": maximum,
        "choices": choices,
        "check": check,
        "aliases": aliases,
        "join_aliases": join_aliases,
        "as_text": as_text,
    }
    return field(default=default, metadata=metadata)


def nvshare_aliases(name: str) -> tuple[str, ...]:
    """The variable of nvshare and that of XPUShare, nvshare's later name, which is in force if both are set."""
    return (f"NVSHARE_{name}", f"XPUSHARE_{name}")


def join_bind_and_port(given: Mapping[str, str], bind_name: str, port_name: str, default_port: int) -> str:
    """HOST:PORT from a variable for the host and one for the port. Either may be absent.

    The host variable may also hold HOST:PORT. Raises a ConfigError that names the wrong variable.
    """
    bind, port_text = given.get(bind_name, "127.0.0.1"), given.get(port_name)
    port = default_port if port_text is None else parse_port(port_text)
    if port is None:
        raise ConfigError(f"{port_name}: expected a port from 0 to 65535, got {port_text!r}")
    if is_host(bind):
        return str(Address(bind, port))
    try:
        address = parse_tcp_address(bind)
    except AddressError as error:
        raise ConfigError(f"{bind_name}: {error}, or a host alone") from error
    if port_text is not None and port != address.port:
        raise ConfigError(f"{port_name}: {port} contradicts {bind_name}={bind}; unset one of the two")
    return str(address)


def check_url(text: str) -> None:
    scheme, separator, rest = text.partition("://")
    if scheme not in ("http", "https") or not separator or not rest.strip("/ "):
        raise ValueError(f"invalid URL {text!r}: no http:// or https:// with a host; use http://127.0.0.1:9090")


def check_mail_address(text: str) -> None:
    if not is_mail_address(text):
        raise ValueError(f"invalid email address {text!r}: use a plain address such as gpu-admins@example.org")


def check_mail_pattern(text: str) -> None:
    if not is_mail_address(text.replace(USER_PLACE, "alice")):
        raise ValueError(f"invalid email address {text!r}: use an address in which {{user}} is the user's name")


def check_expression(text: str) -> None:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"invalid regular expression {text!r}: {error}; escape special characters with \\") from None
