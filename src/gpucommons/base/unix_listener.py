"""The socket file and who is at the other end: everything that asks the kernel about Unix sockets."""

import contextlib
import grp
import logging
import os
import socket
import stat
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

_CREDENTIALS: Final = struct.Struct("3i")
# Linux: the supplementary groups of the peer. Python has no name for it.
_SO_PEERGROUPS: Final = 59
# Python's getsockopt returns at most 1024 bytes. A peer with more groups counts as a member of none.
_MOST_GROUPS: Final = 256

_DIRECTORY_MODE: Final = 0o711
_SOCKET_MODE: Final = 0o722
_BACKLOG: Final = 1024

log = logging.getLogger(__name__)


class ListenError(Exception):
    """The socket cannot be served: one line, and what to do about it."""


class PeerCredentials(NamedTuple):
    pid: int
    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class ClientSocket:
    """A socket for clients. `setting` is the key that names it, for messages.

    A socket that is not `required` is left out where this process has no right to create it.
    """

    path: str
    setting: str
    required: bool = True


def listen_all(wanted: Iterable[ClientSocket]) -> dict[str, socket.socket]:
    """Listening sockets by path. Raises ListenError, and leaves none open, if one of them cannot be served."""
    opened: dict[str, socket.socket] = {}
    try:
        for client_socket in wanted:
            path, setting = client_socket.path, client_socket.setting
            if not client_socket.required and not _may_create(Path(path).parent):
                log.warning(
                    "%s is not served: no right to create it; run as root or set %s ('' for none)", path, setting
                )
                continue
            opened[path] = listen(path, setting)
    except ListenError:
        close_all(opened)
        raise
    return opened


def close_all(opened: dict[str, socket.socket]) -> None:
    """Closes the sockets and removes their files; `opened` is empty afterwards."""
    while opened:
        path, listener = opened.popitem()
        listener.close()
        remove(path)


def listen(path: str, setting: str = "scheduler.socket") -> socket.socket:
    """A listening socket at `path`: a missing directory is created, a dead socket file is replaced."""
    _make_directory(Path(path).parent, setting)
    _clear(path, setting)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
        os.chmod(path, _SOCKET_MODE)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ListenError(f"cannot serve {path}: {error.strerror or error}; set {setting} to another path") from None
    listener.setblocking(False)
    return listener


class Reserve:
    """One descriptor kept back, so that connections can still be turned away when no other is left."""

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self._take()

    def turn_away(self, listener: socket.socket) -> bool:
        """Accepts and closes one waiting connection with the descriptor kept back; False if that failed."""
        self.close()
        turned_away = False
        with contextlib.suppress(OSError):
            listener.accept()[0].close()
            turned_away = True
        self._take()
        return turned_away

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _take(self) -> None:
        with contextlib.suppress(OSError):
            self._descriptor = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)


def remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def _may_create(directory: Path) -> bool:
    """Whether this process may create files in the directory, or the directory itself where it is missing."""
    nearest = next(folder for folder in (directory, *directory.parents) if os.path.exists(folder))
    return os.access(nearest, os.W_OK | os.X_OK)


def _make_directory(directory: Path, setting: str) -> None:
    if directory.is_dir():
        return
    try:
        directory.mkdir(parents=True)
        directory.chmod(_DIRECTORY_MODE)
    except OSError as error:
        raise ListenError(
            f"cannot create {directory}: {error.strerror or error}; run as root or set {setting} to another path"
        ) from None


def _clear(path: str, setting: str) -> None:
    """Removes a socket file that no process serves; refuses one that is served, and any other file."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise ListenError(f"cannot look at {path}: {error.strerror or error}") from None
    if not stat.S_ISSOCK(mode):
        raise ListenError(f"{path} exists and is not a socket: remove it or set {setting} to another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            remove(path)
            return
        except OSError as error:
            raise ListenError(f"cannot tell who serves {path}: {error.strerror or error}") from None
        holder = peer_credentials(probe)
    raise ListenError(f"another scheduler (pid {holder.pid}) serves {path}: stop it or set {setting} to another path")


def peer_credentials(peer: socket.socket) -> PeerCredentials:
    raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return PeerCredentials(*_CREDENTIALS.unpack(raw))


def peer_groups(peer: socket.socket) -> frozenset[int]:
    """Supplementary groups as the kernel knows them; none where it cannot tell."""
    try:
        raw = peer.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 4 * _MOST_GROUPS)
    except OSError:
        return frozenset()
    return frozenset(struct.unpack(f"{len(raw) // 4}I", raw[: len(raw) // 4 * 4]))


def group_id(name: str) -> int | None:
    """The gid of `admin_group`; None where none is set. An unknown group is an error, not a silent nobody."""
    if not name:
        return None
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise ListenError(f"admin_group {name!r} does not exist: create it or leave admin_group empty") from None
