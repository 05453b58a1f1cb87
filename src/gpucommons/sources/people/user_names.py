"""User names by uid. A directory service may take minutes to answer: no caller waits for it.

The passwd file is read first. Unknown uids are looked up in the system's name services on a daemon thread; a name that
is not available immediately is missing until a later pass.
"""

import os
import pwd
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from gpucommons.base.text import lines_of
from gpucommons.base.threads import WorkerThread

PASSWD = Path("/etc/passwd")
_UID = re.compile("[0-9]{1,10}")
_MAX_PASSWD_BYTES = 8 << 20
_MAX_NAMES = 10_000
_REFRESH_S = 600.0
# Local services answer within this time: the first pass then has the name, and no series starts without it.
_AT_ONCE_S = 0.001


class UserNames:
    """`look_up` is for uids that are not in the file; None leaves them without names.

    In a container that reads the host's /proc, the file is the host's and there is no `look_up`: the container's name
    services would return the names of other users with the same uids.
    """

    def __init__(
        self,
        passwd: Path = PASSWD,
        look_up: Callable[[int], str | None] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._passwd = passwd
        self._look_up = look_up
        self._monotonic = monotonic
        self._stamp: tuple[int, int, int] | None = None
        self._in_file: Mapping[int, str] = {}
        self._answers: dict[int, str | None] = {}
        self._requested_s: dict[int, float] = {}
        self._thread = WorkerThread("user-names")
        self.known: Mapping[int, str] = {}

    def see(self, uids: Iterable[int]) -> Mapping[int, str]:
        """The known names of these users. Starts a lookup of the others without waiting for it."""
        self._reread_file()
        uids = set(uids)
        self._request(uid for uid in uids if uid not in self._in_file)
        names = {uid: name for uid in uids if (name := self._in_file.get(uid) or self._answers.get(uid))}
        if names != self.known:
            self.known = names
        return self.known

    def _reread_file(self) -> None:
        try:
            status = os.stat(self._passwd)
            stamp = (status.st_mtime_ns, status.st_ino, status.st_size)
            if stamp == self._stamp:
                return
            with self._passwd.open("rb") as file:
                text = file.read(_MAX_PASSWD_BYTES)
        except OSError:
            return
        self._in_file, self._stamp = parse_passwd(text.decode("utf-8", "replace")), stamp

    def _request(self, uids: Iterable[int]) -> None:
        if self._look_up is None:
            return
        now_s, any_requested = self._monotonic(), False
        for uid in uids:
            requested_s = self._requested_s.get(uid)
            if requested_s is not None and now_s - requested_s < _REFRESH_S:
                continue
            if requested_s is None and len(self._requested_s) >= _MAX_NAMES:
                continue
            self._requested_s[uid] = now_s
            self._thread.submit(partial(self._answer, self._look_up, uid))
            any_requested = True
        if any_requested:
            all_answered = threading.Event()
            self._thread.submit(all_answered.set)
            all_answered.wait(_AT_ONCE_S)

    def _answer(self, look_up: Callable[[int], str | None], uid: int) -> None:
        try:
            self._answers[uid] = look_up(uid)
        except Exception:
            # Keep the known name: a directory service that is down has not renamed the user.
            self._answers.setdefault(uid, None)


def host_user_names(procfs: Path) -> UserNames:
    """The user names of the machine that this procfs shows, which may differ from our container's."""
    root_of_first = procfs / "1" / "root"
    try:
        theirs, ours = os.stat(root_of_first), os.stat("/")
    except OSError:
        return UserNames(PASSWD, name_of_uid)
    if (theirs.st_dev, theirs.st_ino) == (ours.st_dev, ours.st_ino):
        return UserNames(PASSWD, name_of_uid)
    return UserNames(root_of_first / "etc" / "passwd")


def parse_passwd(text: str) -> dict[int, str]:
    """Names by uid; of two names with one uid the first, as in the system. Invalid lines are left out."""
    names: dict[int, str] = {}
    for line in lines_of(text):
        fields = line.split(":")
        if len(fields) >= 4 and fields[0] and _UID.fullmatch(fields[2]):
            names.setdefault(int(fields[2]), fields[0])
    return names


def name_of_uid(uid: int) -> str | None:
    """The answer of the system's name services. May block indefinitely."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return None
