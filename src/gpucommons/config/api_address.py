"""Where the agent serves its API on this machine, and where the commands look for it."""

import os
from collections.abc import Mapping

from gpucommons.base.address import UNIX_PREFIX, parse_unix_address

DEFAULT_LISTEN = "127.0.0.1:9460"
AUTO = "auto"
_SYSTEM_DIRECTORY = "/run/gpucommons"
_NAME = "api.sock"

Environment = Mapping[str, str]


def check_api_socket(text: str) -> None:
    """Raises ValueError, one line."""
    if text != AUTO:
        parse_unix_address(text)


def served_socket(setting: str, environment: Environment | None = None, uid: int | None = None) -> str:
    """The address that the agent serves for `web.socket`; empty where there is none.

    `auto` is systemd's RuntimeDirectory= if set, /run/gpucommons for root, else a directory of the user.
    """
    if setting != AUTO:
        return setting
    environment = os.environ if environment is None else environment
    system, own = _directories(environment)
    directory = system if _is_given(environment) or (os.getuid() if uid is None else uid) == 0 else own
    return _address(directory)


def known_sockets(setting: str, environment: Environment | None = None) -> list[str]:
    """The addresses at which an agent with this `web.socket` can be found: that of the node's agent first."""
    if setting != AUTO:
        return [setting] if setting else []
    environment = os.environ if environment is None else environment
    system, own = _directories(environment)
    directories = [system] if _is_given(environment) else [system, own]
    return [address for address in map(_address, directories) if address]


def _is_given(environment: Environment) -> bool:
    return bool(environment.get("RUNTIME_DIRECTORY"))


def _directories(environment: Environment) -> tuple[str, str]:
    """That of the node's agent, and that of the user's own agent; the latter is empty where the user has none."""
    system = environment.get("RUNTIME_DIRECTORY", "").partition(":")[0] or _SYSTEM_DIRECTORY
    own = environment.get("XDG_RUNTIME_DIR", "")
    return system, f"{own}/gpucommons" if own.startswith("/") else ""


def _address(directory: str) -> str:
    """Empty where there is no directory, or where the path cannot be that of a socket, such as a very long one."""
    if not directory:
        return ""
    address = f"{UNIX_PREFIX}{directory}/{_NAME}"
    try:
        parse_unix_address(address)
    except ValueError:
        return ""
    return address
