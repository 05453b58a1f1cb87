"""HOST:PORT or unix:PATH as text -> a value. Pure: resolves no name and opens nothing."""

from dataclasses import dataclass

from gpucommons.base.decimal_text import parse_decimal

UNIX_PREFIX = "unix:"
# The kernel's sockaddr_un holds 108 bytes with the NUL that ends it.
_LONGEST_PATH_BYTES = 107


class AddressError(ValueError):
    """One line that says what an address looks like."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen. An empty host means every interface, IPv4 and IPv6."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """A socket in the file system, for the people of this machine."""

    path: str

    def __str__(self) -> str:
        return f"{UNIX_PREFIX}{self.path}"


def parse_address(text: str) -> Address | UnixAddress:
    if text.strip().startswith(UNIX_PREFIX):
        return _parse_unix(text.strip().removeprefix(UNIX_PREFIX))
    return _parse_tcp(text)


def _parse_unix(path: str) -> UnixAddress:
    if not path.startswith("/") or "\0" in path or len(path.encode(errors="replace")) > _LONGEST_PATH_BYTES:
        raise AddressError(
            f"{UNIX_PREFIX}{path} is no socket's path: it begins with / and has {_LONGEST_PATH_BYTES} bytes at most"
        )
    return UnixAddress(path)


def _parse_tcp(text: str) -> Address:
    host, colon, port = text.strip().rpartition(":")
    number = parse_decimal(port)
    if not colon or number is None or number > 65535:
        raise AddressError(f"{text!r} is not HOST:PORT, such as 127.0.0.1:9460 or [::1]:9460")
    if any(character.isspace() or not character.isprintable() for character in host):
        raise AddressError(f"{text!r} is no host name")
    if host.startswith("[") and host.endswith("]"):
        return Address(host[1:-1], number)
    if ":" in host:
        raise AddressError(f"{text!r}: an IPv6 address goes in brackets, such as [::1]:9460")
    return Address(host, number)
