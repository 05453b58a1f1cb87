"""Where the agent's sockets are, and where commands look for them."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gpucommons.config.settings import LeasesSettings

_OF_ROOT: Final = Path("/run/gpucommons")
_LEASES: Final = "leases.sock"


def runtime_directory(environment: Mapping[str, str] | None = None, uid: int | None = None) -> Path:
    """systemd's RuntimeDirectory= if set, /run/gpucommons for root, else a directory of the user."""
    environment = os.environ if environment is None else environment
    if given := environment.get("RUNTIME_DIRECTORY", "").partition(":")[0]:
        return Path(given)
    uid = os.getuid() if uid is None else uid
    return _OF_ROOT if uid == 0 else _of_user(environment, uid)


def lease_socket(settings: LeasesSettings) -> Path:
    """The socket that an agent serves."""
    return Path(settings.socket) if settings.socket else runtime_directory() / _LEASES


def lease_sockets(settings: LeasesSettings) -> list[Path]:
    """The sockets that a command tries, in this order: root's agent first."""
    if settings.socket:
        return [Path(settings.socket)]
    return [_OF_ROOT / _LEASES, _of_user(os.environ, os.getuid()) / _LEASES]


def _of_user(environment: Mapping[str, str], uid: int) -> Path:
    given = environment.get("XDG_RUNTIME_DIR", "")
    return (Path(given) if given.startswith("/") else Path(f"/run/user/{uid}")) / "gpucommons"
