"""A listening socket in the file system: made so that everybody may connect, since the kernel tells who does.

A file that a dead agent left behind is replaced; one behind which somebody listens is not, nor is any other file.
"""

import errno
import os
import socket
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_EVERYBODY = 0o666


def listen_unix(path: str, backlog: int) -> socket.socket:
    """Raises OSError whose text says what is in the way."""
    Path(path).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    _clear(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(path)
        os.chmod(path, _EVERYBODY)
        listening.listen(backlog)
        listening.setblocking(False)
    except OSError:
        listening.close()
        raise
    return listening


@dataclass(frozen=True, slots=True)
class SocketFile:
    """The file of a socket that stands, as it was when it was made: a successor's is another."""

    path: str
    identity: tuple[int, int]

    @classmethod
    def of(cls, path: str) -> "SocketFile":
        found = os.lstat(path)
        return cls(path, (found.st_dev, found.st_ino))

    def remove(self) -> None:
        with suppress(OSError):
            if SocketFile.of(self.path) == self:
                os.unlink(self.path)


def _clear(path: str) -> None:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise FileExistsError(errno.EEXIST, "there is a file of that name that is no socket")
    if _answers(path):
        raise OSError(errno.EADDRINUSE, "another program listens there")
    os.unlink(path)


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except OSError as error:
            # A full queue belongs to somebody who listens.
            return error.errno in (errno.EAGAIN, errno.EACCES) or isinstance(error, TimeoutError)
    return True
