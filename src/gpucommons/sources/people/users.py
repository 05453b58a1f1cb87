"""The users of this node: names, groups, usage of their slices, SSH sessions. Reads only files."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from gpucommons.model.workloads import Container, UsersReading
from gpucommons.sources.people.ds01_groups import ds01_membership, read_members, slice_name
from gpucommons.sources.people.groups import Membership, membership
from gpucommons.sources.people.logind import SESSIONS, read_ssh_sessions
from gpucommons.sources.people.user_names import parse_passwd
from gpucommons.sources.people.user_slices import CpuTotals, SliceReader
from gpucommons.sources.people.utmp import parse_utmp, ssh_sessions
from gpucommons.sources.source import SourceAbsent

_MOST_BYTES = 8 << 20
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
        found = {}
        for id, container in self._containers().items():
            if container.init_pid is not None:
                try:
                    found[id] = os.stat(self._procfs / str(container.init_pid)).st_uid
                except OSError:
                    continue
        if found != self._container_uids:
            self._container_uids = found
        return self._container_uids

    def _text(self, name: str) -> str | None:
        data = self._bytes(name)
        return None if data is None else data.decode("utf-8", "replace")

    def _bytes(self, name: str) -> bytes | None:
        try:
            with (self._root / name).open("rb") as file:
                return file.read(_MOST_BYTES)
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
