"""The directory of the agent's sockets, the address of its API, and where the commands look for both."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gpucommons.base.address import UNIX_PREFIX, parse_unix_address

# The directory of the agent's sockets, and the directories in which the commands look for them.

_OF_ROOT: Final = Path("/run/gpucommons")
_LEASES: Final = "leases.sock"
_CONTROL: Final = "control.sock"


def runtime_directory(environment: Mapping[str, str] | None = None, uid: int | None = None) -> Path:
    """systemd's RuntimeDirectory= if set, /run/gpucommons for root, else a directory of the user."""
    environment = os.environ if environment is None else environment
    uid = os.getuid() if uid is None else uid
    return _systemd_directory(environment) or (_OF_ROOT if uid == 0 else _of_user(environment, uid))


def known_directories(environment: Mapping[str, str] | None = None, uid: int | None = None) -> list[Path]:
    """Where a command looks, in this order: root's agent first, then an agent of this user."""
    environment = os.environ if environment is None else environment
    given = _systemd_directory(environment)
    return [given] if given else [_OF_ROOT, _of_user(environment, os.getuid() if uid is None else uid)]


def lease_socket(setting: str) -> Path:
    """The socket that an agent serves. `setting` is `leases.socket`."""
    return Path(setting) if setting else runtime_directory() / _LEASES


def lease_sockets(setting: str) -> list[Path]:
    """The sockets that a command tries, in this order."""
    return [Path(setting)] if setting else [directory / _LEASES for directory in known_directories()]


def control_path(scheduler_socket: str) -> str:
    """The control socket of the node's scheduler: in the directory of its client socket."""
    return str(Path(scheduler_socket).parent / _CONTROL)


def own_control_socket(environment: Mapping[str, str] | None = None, uid: int | None = None) -> Path:
    """For orders to a simulated scheduler, and to that of a user, who may not create the directory of nvshare."""
    return runtime_directory(environment, uid) / _CONTROL


def control_sockets(
    of_node: Path, environment: Mapping[str, str] | None = None, uid: int | None = None
) -> tuple[Path, ...]:
    """Where a command looks for a scheduler, in this order. `of_node` is the control socket of the node's.

    A user who runs an agent means that one: orders of users to the node's agent are mostly refused.
    """
    uid = os.getuid() if uid is None else uid
    own = () if uid == 0 else (own_control_socket(environment, uid),)
    others = (directory / _CONTROL for directory in known_directories(environment, uid))
    return tuple(dict.fromkeys((*own, of_node, *others)))


def _systemd_directory(environment: Mapping[str, str]) -> Path | None:
    first = environment.get("RUNTIME_DIRECTORY", "").partition(":")[0]
    return Path(first) if first else None


def _of_user(environment: Mapping[str, str], uid: int) -> Path:
    given = environment.get("XDG_RUNTIME_DIR", "")
    return (Path(given) if given.startswith("/") else Path(f"/run/user/{uid}")) / "gpucommons"


# Where the agent serves its API on this machine, and where the commands look for it.

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
