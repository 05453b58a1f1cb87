"""Parses HOST:PORT and unix:PATH, and makes the addresses of a node's page and of a job's. Pure: opens no socket."""

import ipaddress
import re
from typing import Final, NamedTuple
from urllib.parse import quote

from gpucommons.base.text import parse_decimal

# Parse HOST:PORT and unix:PATH. Pure: resolves no name and opens no socket.

UNIX_PREFIX = "unix:"
ANY_HOST = "*"
_USE = "use HOST:PORT, such as 127.0.0.1:9460 or [::1]:9460"
# The kernel's sockaddr_un holds 108 bytes, including the NUL at the end.
_LONGEST_PATH_BYTES = 107
_LONGEST_NAME = 253
_NAME = re.compile(r"[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*\.?", re.ASCII | re.IGNORECASE)


class AddressError(ValueError):
    """One line: the invalid address, why it is invalid, and what to use instead."""

    def __init__(self, text: str, why: str, use: str = _USE) -> None:
        super().__init__(f"invalid address {text!r}: {why}; {use}")


class Address(NamedTuple):
    """A TCP address. An empty host means every interface, IPv4 and IPv6."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class UnixAddress(NamedTuple):
    """The path of a Unix socket."""

    path: str

    def __str__(self) -> str:
        return f"{UNIX_PREFIX}{self.path}"


def parse_address(text: str) -> Address | UnixAddress:
    return parse_unix_address(text) if text.startswith(UNIX_PREFIX) else parse_tcp_address(text)


def parse_address_or_port(text: str) -> Address | UnixAddress:
    """As parse_address; a port alone means every IPv4 interface."""
    port = parse_port(text)
    return parse_address(text) if port is None else Address("0.0.0.0", port)


def parse_unix_address(text: str) -> UnixAddress:
    path = text.removeprefix(UNIX_PREFIX)
    use = "use unix:/PATH, such as unix:/run/gpucommons/api.sock"
    if path == text or not path.startswith("/"):
        raise AddressError(text, "not an absolute path after unix:", use)
    if not path.isprintable():
        raise AddressError(text, "the path has a control character or is not valid UTF-8", use)
    if len(path.encode()) > _LONGEST_PATH_BYTES:
        raise AddressError(text, f"the path is longer than {_LONGEST_PATH_BYTES} bytes", "use a shorter path")
    return UnixAddress(path)


def parse_tcp_address(text: str) -> Address:
    host, colon, port_text = text.rpartition(":")
    port = parse_port(port_text)
    if not colon:
        raise AddressError(text, "no colon between host and port")
    if port is None:
        raise AddressError(text, f"{port_text!r} is not a port from 0 to 65535")
    if host.startswith("[") and host.endswith("]"):
        if not _is_ipv6(host[1:-1]):
            raise AddressError(text, f"{host[1:-1]!r} is not an IPv6 address")
        return Address(host[1:-1], port)
    if _is_ipv6(host):
        raise AddressError(text, "an IPv6 address needs brackets")
    if not is_host(host):
        raise AddressError(text, f"{host!r} is not a host name")
    return Address(host, port)


def parse_remote_address(text: str) -> Address:
    """The address of a server to connect to: with a host, and with a port other than 0."""
    address = parse_tcp_address(text)
    if not address.host or not address.port:
        raise AddressError(text, "a server has a host and a port from 1 to 65535")
    return address


def parse_port(text: str) -> int | None:
    number = parse_decimal(text)
    return number if number is not None and number <= 65535 else None


def parse_host_names(text: str) -> tuple[str, ...]:
    """Comma-separated host names without ports; `*` means every name. Raises ValueError."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name != ANY_HOST and not _is_name(name):
            raise ValueError(
                f"invalid host name {name!r}: not a name without a port; use gpu1.example.org, or * for any"
            )
    return names


def is_host(text: str) -> bool:
    """True for a host name, an IP address without brackets, and the empty host."""
    return not text or _is_ipv6(text) or _is_name(text)


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return text.isascii() and text.isprintable()


def _is_name(text: str) -> bool:
    try:
        name = text if text.isascii() else text.encode("idna").decode()
    except UnicodeError:
        return False
    return len(name) <= _LONGEST_NAME and _NAME.fullmatch(name) is not None


# The address of a node's page, from the labels of its target, and that of a job in a dashboard. Pure.
#
# Labels come from outside: only names that are certainly a host, with or without a port, become part of an address.

_HOST = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,252})|\[[0-9A-Fa-f:.]{2,45}\]"
_INSTANCE: Final = re.compile(rf"({_HOST})(?::[0-9]{{1,5}})?", re.ASCII)
_PLACE: Final = re.compile(r"\{([^{}]*)\}")
_PATTERN: Final = re.compile(r"https?://[^\s\"'<>\\`]+", re.ASCII)


def check_page_url(text: str) -> None:
    """Raises ValueError for a pattern that is not an address with known placeholders."""
    if not _is_pattern(text, ("instance", "host", "node")):
        raise ValueError(
            f"invalid address {text!r}: use http:// or https:// with {{instance}}, {{host}} or {{node}}, "
            "such as http://{host}:9460/"
        )


def check_job_url(text: str) -> None:
    """As `check_page_url`, for the address of a job."""
    if text and not _is_pattern(text, ("job", "from_ms", "to_ms")):
        raise ValueError(
            f"invalid address {text!r}: use http:// or https:// with {{job}}, {{from_ms}} or {{to_ms}}, "
            "such as https://grafana.example.org/d/usage?var-job={job}&from={from_ms}&to={to_ms}"
        )


def _is_pattern(text: str, names: tuple[str, ...]) -> bool:
    plain = _PLACE.sub("x", text)
    is_address = _PATTERN.fullmatch(plain) is not None and "{" not in plain and "}" not in plain
    return is_address and all(name in names for name in _PLACE.findall(text))


def job_address(pattern: str, job: str, first_s: int | None, last_s: int | None) -> str | None:
    """None without a pattern, and where the pattern needs a time that is not known."""
    times = {"from_ms": first_s, "to_ms": last_s}
    values = {name: None if seconds is None else str(1000 * seconds) for name, seconds in times.items()}
    values["job"] = quote(job, safe="", errors="replace")
    if not pattern or any(values[name] is None for name in _PLACE.findall(pattern)):
        return None
    return _PLACE.sub(lambda match: values[match[1]] or "", pattern)


def host_of(instance: str) -> str:
    """The instance without its port."""
    match = _INSTANCE.fullmatch(instance)
    return match[1] if match else instance


def page_address(pattern: str, instance: str, node: str) -> str | None:
    """None where a label that the pattern needs is not a host."""
    values = {"instance": instance, "host": host_of(instance), "node": node}
    needed = _PLACE.findall(pattern)
    if any(_INSTANCE.fullmatch(values[name]) is None for name in needed):
        return None
    return _PLACE.sub(lambda match: values[match[1]], pattern)
