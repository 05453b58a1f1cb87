"""Where the pauser's socket and the records of paused programs are."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gpucommons.base.text import parse_decimal

# The pauser that runs as a service of its own (deploy/systemd/gpucommons-pauser.service). Its directory is root's
# alone: the agent's /run/gpucommons belongs to the agent's user, and systemd removes it when the agent stops.
SERVICE_DIRECTORY: Final = Path("/run/gpucommons-pauser")
SERVICE_SOCKET: Final = SERVICE_DIRECTORY / "pauser.sock"
SERVICE_RECORD: Final = SERVICE_DIRECTORY / "paused"

# Next to the socket: touched while the pauser goes on.
ALIVE: Final = "alive"

_ROOT_RECORD: Final = Path("/run/gpucommons/paused")
_USERS: Final = Path("/run/user")
_BELOW_RUNTIME: Final = Path("gpucommons/paused")


def default_record(environment: Mapping[str, str], uid: int) -> Path:
    """The record of a pauser that is the agent's child."""
    if uid == 0:
        return _ROOT_RECORD
    return _runtime_directory(environment, uid) / _BELOW_RUNTIME


def known_records(environment: Mapping[str, str], uid: int) -> list[tuple[Path, int]]:
    """Every record that this user may have to resume, and whose it must be: root all of them, others their own."""
    if uid != 0:
        return [(default_record(environment, uid), uid)]
    users = [(path, path.parts[len(_USERS.parts)]) for path in sorted(_USERS.glob(f"*/{_BELOW_RUNTIME}"))]
    return [
        (_ROOT_RECORD, 0),
        (SERVICE_RECORD, 0),
        *((path, owner) for path, user in users if (owner := parse_decimal(user)) is not None),
    ]


def _runtime_directory(environment: Mapping[str, str], uid: int) -> Path:
    given = environment.get("XDG_RUNTIME_DIR", "")
    return Path(given) if given.startswith("/") else _USERS / str(uid)
