"""Runs nvidia-cuda-mps-control: starts a daemon, asks whether it answers, ends it, reads its logs. Decides nothing.

A daemon of a user runs as that user in directories of that user. So their files are read without following links, and a
process is signalled only if it is an MPS daemon of that user. All calls block.
"""

import os
import pwd
import re
import shutil
import signal
import stat
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from gpucommons.base.processes import state_letter
from gpucommons.base.text import lines_of, parse_decimal, printable
from gpucommons.leases.mps.plan import MpsKey

PROGRAM: Final = "nvidia-cuda-mps-control"
# As the kernel shows it: names of processes are cut to 15 characters.
_COMM: Final = "nvidia-cuda-mps"
_START_S: Final = 15.0
_ANSWER_S: Final = 5.0
_QUIT_S: Final = 15.0
_PID_FILE: Final = f"{PROGRAM}.pid"
_LOGS: Final = ("control.log", "server.log")
_MAX_READ: Final = 65536
_LONGEST_LINE: Final = 300
# What the daemon needs of the agent's environment.
_INHERITED: Final = ("PATH", "LD_LIBRARY_PATH", "LANG")
_SHARED_NAME: Final = "all"
_DIRECTORY: Final = re.compile(r"(all|\d+)-(GPU-[0-9A-Za-z-]+)")
_MAX_SOCKET_BYTES: Final = 100


class MpsError(Exception):
    """What could not be done, in one line."""


class MpsPlaces(NamedTuple):
    """The directories of a daemon: its pipes, by which programs find it, and its logs. Short: sockets are in them."""

    pipes: Path
    logs: Path


class MpsControl:
    """`root` is the directory of all daemons. `is_shared`: a daemon serves all users."""

    def __init__(self, root: Path, is_shared: bool) -> None:
        self._root = root
        self._is_shared = is_shared

    def general_obstacle(self) -> str:
        """Why no daemon can be started for any user; empty where one can."""
        if shutil.which(PROGRAM) is None:
            return f"{PROGRAM} was not found: install the driver's compute utilities"
        if self._is_shared and os.geteuid() != 0:
            return f"a daemon for all users needs root, and the agent runs as uid {os.geteuid()}"
        return ""

    def obstacle(self, uid: int) -> str:
        """Why no daemon can serve this user; empty where one can."""
        own = os.geteuid()
        if (obstacle := self.general_obstacle()) or own == 0 or uid == own:
            return obstacle
        return f"the agent runs as uid {own} and cannot start MPS for uid {uid}: run it as root"

    def places(self, key: MpsKey) -> MpsPlaces:
        directory = self._root / f"{_SHARED_NAME if key.uid is None else key.uid}-{key.gpu_uuid}"
        return MpsPlaces(directory / "p", directory / "log")

    def find_left_over(self) -> list[MpsKey]:
        """The daemons of an earlier agent that answer."""
        try:
            names = sorted(os.listdir(self._root))
        except OSError:
            return []
        matches = [match for name in names if (match := _DIRECTORY.fullmatch(name))]
        keys = [MpsKey(None if m[1] == _SHARED_NAME else int(m[1]), m[2]) for m in matches]
        return [key for key in keys if self.pid(key) is not None and self.answers(key)]

    def start(self, key: MpsKey) -> None:
        """Returns when programs can use it, also where it runs already. Raises MpsError."""
        if self.pid(key) is not None and self.answers(key):
            return
        try:
            self._make_directories(key)
        except (OSError, KeyError) as error:
            raise MpsError(f"cannot make its directories below {self._root}: {error}") from None
        options = ["-d", "-multiuser-server"] if key.uid is None else ["-d"]
        status, output = self._run(key, options, b"", _START_S)
        if status != 0:
            raise MpsError(f"{PROGRAM} {' '.join(options)} ended with status {status}: {output or 'no message'}")
        if not self.answers(key):
            raise MpsError(f"{PROGRAM} was started and does not answer; its log is {self.places(key).logs}")

    def answers(self, key: MpsKey) -> bool:
        with suppress(MpsError):
            return self._run(key, [], b"get_server_list\n", _ANSWER_S)[0] == 0
        return False

    def has_clients(self, key: MpsKey) -> bool:
        """Whether programs use it: one that a command left behind goes on without a lease, like any other program."""
        with suppress(MpsError):
            servers = _numbers(self._run(key, [], b"get_server_list\n", _ANSWER_S)[1])
            lists = (self._run(key, [], f"get_client_list {server}\n".encode(), _ANSWER_S)[1] for server in servers)
            return any(_numbers(text) for text in lists)
        return False

    def stop(self, key: MpsKey) -> None:
        """Ends the daemon and its servers; one that does not answer is killed."""
        with suppress(MpsError):
            self._run(key, [], b"quit\n", _QUIT_S)
        if self.is_alive(key):
            self.kill(key)

    def is_alive(self, key: MpsKey) -> bool:
        return self.pid(key) is not None

    def pid(self, key: MpsKey) -> int | None:
        """The daemon's pid by its own file, where that is a daemon of this user; None where there is none."""
        content = self._content(key, self.places(key).pipes / _PID_FILE, 0)
        pid = None if content is None else parse_decimal(content.decode(errors="replace").strip())
        return pid if pid is not None and self._is_daemon(key, pid) else None

    def kill(self, key: MpsKey) -> None:
        pid = self.pid(key)
        if pid is None:
            return
        with suppress(OSError):
            handle = os.pidfd_open(pid)
            try:
                # Checked again: the handle is of the process that has the pid now.
                if self._is_daemon(key, pid):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            finally:
                os.close(handle)

    def remove(self, key: MpsKey) -> None:
        """The directories of a daemon that was stopped."""
        shutil.rmtree(self.places(key).pipes.parent, ignore_errors=True)

    def new_log_lines(self, key: MpsKey, read: dict[str, int]) -> list[str]:
        """The lines since the last call. `read` keeps how far each file was read."""
        lines = []
        for name in _LOGS:
            offset = read.get(name, 0)
            content = self._content(key, self.places(key).logs / name, offset)
            whole = b"" if content is None else content[: content.rfind(b"\n") + 1]
            if content is not None and not whole and len(content) == _MAX_READ:
                # A line longer than all that is read at once: it is skipped.
                whole = content
            read[name] = offset + len(whole)
            lines += [printable(line.strip(), _LONGEST_LINE) for line in lines_of(whole.decode(errors="replace"))]
        return [line for line in lines if line]

    # -- files

    def _make_directories(self, key: MpsKey) -> None:
        """Those of one user are that user's alone, in a directory of the agent, so that the user cannot replace them.

        Those for all users are the agent's, and each user may enter.
        """
        places = self.places(key)
        if len(os.fsencode(places.pipes / "control_privileged")) > _MAX_SOCKET_BYTES:
            raise OSError(f"the path {places.pipes} is too long for a socket; use a shorter runtime directory")
        self._root.mkdir(parents=True, exist_ok=True)
        _claim(self._root, 0o711)
        places.pipes.parent.mkdir(exist_ok=True)
        _claim(places.pipes.parent, 0o711)
        # What an earlier daemon left there would be in the way.
        shutil.rmtree(places.pipes, ignore_errors=True)
        for directory in places:
            directory.mkdir(exist_ok=True)
            os.chmod(directory, 0o755 if key.uid is None else 0o700)
            if key.uid is not None and key.uid != os.geteuid():
                os.chown(directory, key.uid, pwd.getpwuid(key.uid).pw_gid)

    def _content(self, key: MpsKey, path: Path, offset: int) -> bytes | None:
        """A part of a file that the daemon wrote. None where it is not a plain file of the daemon's user."""
        try:
            file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != self._uid(key):
                return None
            return os.pread(file, _MAX_READ, offset if offset <= status.st_size else 0)
        except OSError:
            return None
        finally:
            os.close(file)

    def _is_daemon(self, key: MpsKey, pid: int) -> bool:
        try:
            uid = _real_uid(Path(f"/proc/{pid}/status").read_bytes().decode("utf-8", "replace"))
            comm = Path(f"/proc/{pid}/comm").read_text(errors="replace")
            has_ended = state_letter(Path(f"/proc/{pid}/stat").read_bytes()) == "Z"
        except (OSError, ValueError, IndexError):
            return False
        return uid == self._uid(key) and comm.startswith(_COMM) and not has_ended

    def _uid(self, key: MpsKey) -> int:
        return os.geteuid() if key.uid is None else key.uid

    # -- the program

    def _run(self, key: MpsKey, options: list[str], given: bytes, within_s: float) -> tuple[int, str]:
        """Its exit status and the end of its output. Raises MpsError.

        The output goes to a file: a daemon that keeps its end of a pipe open would keep us waiting.
        """
        places = self.places(key)
        environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        environment |= {
            "CUDA_VISIBLE_DEVICES": key.gpu_uuid,
            "CUDA_MPS_PIPE_DIRECTORY": str(places.pipes),
            "CUDA_MPS_LOG_DIRECTORY": str(places.logs),
        }
        with tempfile.TemporaryFile() as output:
            try:
                account = _account(key)
                done = subprocess.Popen(
                    [PROGRAM, *options],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    cwd="/",
                    start_new_session=True,
                    user=account.user,
                    group=account.group,
                    extra_groups=account.groups,
                )
                try:
                    done.communicate(given, timeout=within_s)
                except subprocess.TimeoutExpired:
                    done.kill()
                    done.wait()
                    raise MpsError(f"{PROGRAM} has not ended within {within_s:g} s") from None
            except (OSError, KeyError, subprocess.SubprocessError) as error:
                raise MpsError(f"cannot run {PROGRAM}: {error}") from None
            output.seek(max(0, output.seek(0, os.SEEK_END) - _LONGEST_LINE))
            text = output.read().decode(errors="replace")
        return done.returncode, printable(" ".join(text.split()), _LONGEST_LINE)


def _numbers(output: str) -> list[int]:
    return [number for word in output.split() if (number := parse_decimal(word)) is not None]


def _claim(directory: Path, mode: int) -> None:
    """Raises OSError where a directory is another user's: that user could replace what is in it."""
    if os.lstat(directory).st_uid != os.geteuid():
        raise OSError(f"{directory} belongs to another user")
    os.chmod(directory, mode)


class _Account(NamedTuple):
    """As whom the program runs; None: as the agent."""

    user: int | None = None
    group: int | None = None
    groups: list[int] | None = None


def _account(key: MpsKey) -> _Account:
    """Raises KeyError for a user that does not exist."""
    if key.uid is None or key.uid == os.geteuid():
        return _Account()
    row = pwd.getpwuid(key.uid)
    return _Account(key.uid, row.pw_gid, os.getgrouplist(row.pw_name, row.pw_gid))


def _real_uid(status: str) -> int | None:
    """The user of a process by its status file, which is right also while a process changes its user."""
    line = next((line for line in lines_of(status) if line.startswith("Uid:")), "")
    return parse_decimal(line.split()[1]) if len(line.split()) > 1 else None
