"""The users of this node: names, groups, usage of their slices, SSH sessions. Reads only files."""

import os
import stat
import struct
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from gpucommons.base.text import lines_of, parse_decimal
from gpucommons.model.workloads import Container, UsersReading
from gpucommons.sources.people.groups import Membership, ds01_membership, membership, read_members, slice_name
from gpucommons.sources.people.user_names import parse_passwd
from gpucommons.sources.people.user_slices import CpuTotals, SliceReader
from gpucommons.sources.source import SourceAbsent

# SSH sessions from the binary records of utmp. Pure.
#
# Damaged records are left out. Records of 64-bit ARM are longer; the size is detected from the content.

_USER_PROCESS = 7
_LAST_TYPE = 9
# type, pid, line, id, user, host; the exit status, session, time and address that follow are not needed.
_HEAD = struct.Struct("=hxxi32s4s32s256s")
_RECORD_BYTES = (384, 400)
_MAX_RECORDS = 100_000


class Login(NamedTuple):
    type: int
    pid: int
    line: str
    user: str
    host: str


def parse_utmp(data: bytes) -> list[Login]:
    """Every record of the file, with the record size that fits; a truncated record at the end is left out."""
    readings = [_records(data, size) for size in _RECORD_BYTES]
    exact = [logins for logins, size in zip(readings, _RECORD_BYTES, strict=True) if len(data) % size == 0]
    return max(exact or readings, key=_sound)


def ssh_sessions(logins: list[Login], is_alive: Callable[[int], bool]) -> Mapping[str, int]:
    """Sessions by user. The record of a session that lost its connection remains: its process must be alive."""
    counts = Counter(login.user for login in logins if _is_remote(login) and is_alive(login.pid))
    return dict(counts)


def _is_remote(login: Login) -> bool:
    """Terminal multiplexers and X sessions write something other than a host."""
    host = login.host
    return (
        login.type == _USER_PROCESS
        and bool(login.user and host)
        and not host.startswith((":", "tmux(", "localhost:"))
        and "via mosh" not in host
    )


def _records(data: bytes, size: int) -> list[Login]:
    count = min(len(data) // size, _MAX_RECORDS)
    return [_record(data, at) for at in range(0, count * size, size)]


def _record(data: bytes, at: int) -> Login:
    type, pid, line, _, user, host = _HEAD.unpack_from(data, at)
    return Login(type, pid, _text(line), _text(user), _text(host))


def _sound(logins: list[Login]) -> float:
    """The share of plausible records: close to zero for the wrong record size."""
    good = sum(0 <= login.type <= _LAST_TYPE and login.pid >= 0 for login in logins)
    return good / len(logins) if logins else 0.0


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "replace")


# SSH sessions from systemd-logind's files, for hosts that no longer have utmp.
#
# libsystemd reads the same files for its callers. Each session has a file of KEY=VALUE lines in run/systemd/sessions.
# Pipes and links there are not opened.

SESSIONS = "run/systemd/sessions"
_SSH_SERVICES = ("sshd", "ssh")
_MAX_SESSIONS = 10_000
_MAX_SESSION_BYTES = 16 * 1024


def read_ssh_sessions(directory: Path, is_alive: Callable[[int], bool]) -> Mapping[str, int] | None:
    """Sessions by user; None without the directory. As with utmp, the first process of a session must be alive."""
    try:
        names = sorted(os.listdir(directory))[:_MAX_SESSIONS]
    except OSError:
        return None
    sessions = (parse_session(_session_text(directory / name)) for name in names)
    return dict(Counter(user for user, leader in filter(None, sessions) if is_alive(leader)))


def parse_session(text: str) -> tuple[str, int] | None:
    """The user of an SSH session and the pid of its first process; None for any other file."""
    values = dict(line.split("=", 1) for line in lines_of(text) if "=" in line)
    user, leader = values.get("USER", ""), values.get("LEADER", "")
    is_open = values.get("STATE", "") in ("active", "online", "opening")
    if values.get("SERVICE") not in _SSH_SERVICES or not is_open or not user:
        return None
    pid = parse_decimal(leader)
    return None if pid is None else (user, pid)


def _session_text(file: Path) -> str:
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        return os.read(descriptor, _MAX_SESSION_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)


_MAX_BYTES = 8 << 20
_UTMP = ("run/utmp", "var/run/utmp")


class UsersReader:
    """`root` is the host's root file system; in a container it is not /. `slice_owner` parses DS01's slice names.

    If `ds01_groups` has files of members, the groups are DS01's and not the system's.
    """

    def __init__(
        self,
        root: Path,
        procfs: Path,
        cgroupfs: Path,
        slice_owner: Callable[[str], tuple[str, str] | None],
        ds01_groups: Path,
        containers: Callable[[], Mapping[str, Container]] = dict,
    ) -> None:
        self._root = root
        self._procfs = procfs
        self._ds01_groups = ds01_groups
        self._containers = containers
        self._slices = SliceReader(cgroupfs, slice_owner)
        self._cpu = CpuTotals()
        self._texts: tuple[str, str, dict[str, str]] | None = None
        self._names: dict[int, str] = {}
        self._membership = Membership({}, {})
        self._user_of_slice: dict[str, str] = {}
        self._container_uids: dict[str, int] = {}

    def read(self) -> UsersReading:
        self._read_accounts()
        group_of = self._membership.group_of
        try:
            uses = self._slices.read(lambda uid: self._names.get(uid, str(uid)), group_of, self._user_of_slice)
        except OSError:
            uses = []
        return UsersReading(
            self._names,
            group_of,
            self._membership.members,
            self._cpu.step(uses),
            self._sessions(),
            self._uids_of_containers(),
        )

    def _read_accounts(self) -> None:
        """The same mappings while the files are unchanged: others cache what they derive from them."""
        passwd = self._text("etc/passwd")
        if passwd is None:
            raise SourceAbsent(
                f"no users: cannot read {self._root / 'etc/passwd'}", "in a container, mount the host's / read-only"
            )
        group, ds01 = self._text("etc/group") or "", read_members(self._ds01_groups)
        if (passwd, group, ds01) != self._texts:
            self._texts, self._names = (passwd, group, ds01), parse_passwd(passwd)
            self._membership = ds01_membership(ds01) if ds01 else membership(passwd, group)
            self._user_of_slice = {slice_name(user): user for user in self._membership.group_of} if ds01 else {}

    def _sessions(self) -> Mapping[str, int] | None:
        # An empty file means that there are no sessions. Newer distributions have no utmp; logind has the sessions.
        data = next((data for name in _UTMP if (data := self._bytes(name)) is not None), None)
        if data is None:
            return read_ssh_sessions(self._root / SESSIONS, self._is_alive)
        return ssh_sessions(parse_utmp(data), self._is_alive)

    def _is_alive(self, pid: int) -> bool:
        return (self._procfs / str(pid)).exists()

    def _uids_of_containers(self) -> Mapping[str, int]:
        uids = {}
        for id, container in self._containers().items():
            if container.init_pid is not None:
                try:
                    uids[id] = os.stat(self._procfs / str(container.init_pid)).st_uid
                except OSError:
                    continue
        if uids != self._container_uids:
            self._container_uids = uids
        return self._container_uids

    def _text(self, name: str) -> str | None:
        data = self._bytes(name)
        return None if data is None else data.decode("utf-8", "replace")

    def _bytes(self, name: str) -> bytes | None:
        try:
            with (self._root / name).open("rb") as file:
                return file.read(_MAX_BYTES)
        except OSError:
            return None


def host_root(procfs: Path) -> Path:
    """The root file system of the machine that this procfs shows, which may differ from our container's."""
    root_of_first = procfs / "1" / "root"
    try:
        theirs, ours = os.stat(root_of_first), os.stat("/")
    except OSError:
        return Path("/")
    same = (theirs.st_dev, theirs.st_ino) == (ours.st_dev, ours.st_ino)
    return Path("/") if same else root_of_first
