"""Where the agent serves its API on this machine, and where the commands look for it."""

from collections.abc import Mapping
from pathlib import Path

from gpucommons.base.address import UNIX_PREFIX, parse_unix_address
from gpucommons.config.runtime_directory import known_directories, runtime_directory

DEFAULT_LISTEN = "127.0.0.1:9460"
AUTO = "auto"
_NAME = "api.sock"


def check_api_socket(text: str) -> None:
    """Raises ValueError, one line."""
    if text != AUTO:
        parse_unix_address(text)


def served_socket(setting: str, environment: Mapping[str, str] | None = None, uid: int | None = None) -> str:
    """The address that the agent serves for `web.socket`; empty where it has no place for one."""
    if setting != AUTO:
        return setting
    directory = runtime_directory(environment, uid)
    return _address(directory) if directory.parent.is_dir() else ""


def known_sockets(setting: str, environment: Mapping[str, str] | None = None, uid: int | None = None) -> list[str]:
    """The addresses at which an agent with this `web.socket` can be found, in the order in which they are tried."""
    if setting != AUTO:
        return [setting] if setting else []
    return [address for address in map(_address, known_directories(environment, uid)) if address]


def _address(directory: Path) -> str:
    """Empty where the path cannot be that of a socket, such as a very long one."""
    address = f"{UNIX_PREFIX}{directory / _NAME}"
    try:
        parse_unix_address(address)
    except ValueError:
        return ""
    return address
