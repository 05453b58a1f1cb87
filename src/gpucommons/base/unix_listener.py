"""Unix sockets: listen on one, and read the credentials of a peer."""

import contextlib
import grp
import logging
import os
import socket
import stat
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from gpucommons.base.files import creation_mode

_CREDENTIALS: Final = struct.Struct("3i")
# Linux: the supplementary groups of the peer. Python has no name for it.
_SO_PEERGROUPS: Final = 59
# Python's getsockopt returns at most 1024 bytes. A peer with more groups counts as a member of none.
_MAX_GROUPS: Final = 256

_DIRECTORY_MODE: Final = 0o711
# Every user may connect; the kernel reports which one did.
_SOCKET_MODE: Final = 0o722
_BACKLOG: Final = 1024
_PROBE_S: Final = 1.0

log = logging.getLogger(__name__)


class ListenError(OSError):
    """An address cannot be served. One line: the address, why, and which setting to change."""


class PeerCredentials(NamedTuple):
    pid: int
    uid: int
    gid: int


class ClientSocket(NamedTuple):
    """A socket for clients. `setting` is the key that names it, for messages.

    A socket that is not `required` is left out where this process has no right to create it.
    """

    path: str
    setting: str
    required: bool = True


class UnixListener(socket.socket):
    """A listening socket. Closing it removes its file, unless the file has been replaced by another process."""

    def __init__(self, path: str, mode: int) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM)
        self._path = path
        self._file: tuple[int, int] | None = None
        try:
            with creation_mode(mode):
                self.bind(path)
            self._file = _identity(path)
            self.listen(_BACKLOG)
            self.setblocking(False)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        self.remove_file()
        super().close()

    def remove_file(self) -> None:
        with contextlib.suppress(OSError):
            if self._file is not None and _identity(self._path) == self._file:
                os.unlink(self._path)
        self._file = None


def listen_all(client_sockets: Iterable[ClientSocket]) -> dict[str, socket.socket]:
    """Listening sockets by path. Raises ListenError, and leaves none open, if one of them cannot be served."""
    opened: dict[str, socket.socket] = {}
    try:
        for client_socket in client_sockets:
            path, setting = client_socket.path, client_socket.setting
            if not client_socket.required and not _may_create(Path(path).parent):
                log.warning(
                    "%s is not served: no permission to create it; run as root or set %s ('' for none)", path, setting
                )
                continue
            opened[path] = listen(path, setting)
    except ListenError:
        close_all(opened)
        raise
    return opened


def close_all(opened: dict[str, socket.socket]) -> None:
    """Closes the sockets, which removes their files; `opened` is empty afterwards."""
    while opened:
        opened.popitem()[1].close()


def listen(path: str, setting: str = "scheduler.socket", mode: int = _SOCKET_MODE) -> UnixListener:
    """A listening socket at `path`. Creates a missing directory and replaces a stale socket file.

    Raises ListenError if a process listens there, or if the file is not a socket.
    """
    _make_directory(Path(path).parent, setting)
    _remove_stale(path, setting)
    try:
        return UnixListener(path, mode)
    except OSError as error:
        raise _refusal(path, error.strerror or str(error), setting) from None


class Reserve:
    """One spare descriptor, to accept and close a waiting connection when the process has no other left."""

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self._take()

    def turn_away(self, listener: socket.socket) -> bool:
        """Accepts and closes one waiting connection with the spare descriptor; False if that failed."""
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


def _refusal(path: str, why: str, setting: str) -> ListenError:
    return ListenError(f"cannot listen on {path}: {why}; set {setting} to another path")


def _identity(path: str) -> tuple[int, int]:
    status = os.lstat(path)
    return status.st_dev, status.st_ino


def _may_create(directory: Path) -> bool:
    """Whether this process may create files in the directory, or the directory itself where it is missing."""
    nearest = next(folder for folder in (directory, *directory.parents) if os.path.exists(folder))
    return os.access(nearest, os.W_OK | os.X_OK)


def _make_directory(directory: Path, setting: str) -> None:
    if directory.is_dir():
        return
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with creation_mode(_DIRECTORY_MODE):
            directory.mkdir()
    except OSError as error:
        raise ListenError(
            f"cannot create {directory}: {error.strerror or error}; run as root or set {setting} to another path"
        ) from None


def _remove_stale(path: str, setting: str) -> None:
    """Removes a socket file that no process serves."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise _refusal(path, "the file exists and is not a socket", setting)
        server_pid = _server_pid(path)
        if server_pid is not None:
            raise _refusal(path, f"another process (pid {server_pid}) listens there", setting)
        os.unlink(path)
    except FileNotFoundError:
        return
    except ListenError:
        raise
    except OSError as error:
        # Such as a full queue: a process listens there, and its pid is unknown.
        raise _refusal(path, error.strerror or str(error), setting) from None


def _server_pid(path: str) -> int | None:
    """The pid of the process that listens at `path`; None where none does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_S)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return None
        return peer_credentials(probe).pid


def peer_credentials(peer: socket.socket) -> PeerCredentials:
    raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return PeerCredentials(*_CREDENTIALS.unpack(raw))


def peer_groups(peer: socket.socket) -> frozenset[int]:
    """Supplementary groups of the peer, from the kernel; empty where the kernel does not report them."""
    try:
        raw = peer.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 4 * _MAX_GROUPS)
    except OSError:
        return frozenset()
    return frozenset(struct.unpack(f"{len(raw) // 4}I", raw[: len(raw) // 4 * 4]))


def group_id(name: str) -> int | None:
    """The gid of `admin_group`; None where the setting is empty. Raises ListenError for an unknown group."""
    if not name:
        return None
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise ListenError(f"admin_group {name!r} does not exist: create it or leave admin_group empty") from None
