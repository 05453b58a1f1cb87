"""User names by uid. A directory service may take minutes to answer: nobody here waits for one.

The passwd file is read first. Whom it does not know is asked of the system's name services on a
daemon thread of its own; what does not come at once is for a later pass, and missing until then.
"""

import os
import pwd
import queue
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

PASSWD = Path("/etc/passwd")
_UID = re.compile("[0-9]{1,10}")
_MOST_PASSWD_BYTES = 8 << 20
_MOST_NAMES = 10_000
_REFRESH_S = 600.0
# Local services answer within this: the first pass then has the name, and no series starts without it.
_AT_ONCE_S = 0.001


class UserNames:
    """`look_up` is for whom the file does not know; None leaves them nameless.

    In a container that reads the host's /proc, the file is the host's and there is no `look_up`: our
    own name services would tell the names of strangers who bear the same numbers.
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
        self._asked_s: dict[int, float] = {}
        self._questions: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._all_answered = threading.Event()
        self._thread: threading.Thread | None = None
        self.known: Mapping[int, str] = {}

    def see(self, uids: Iterable[int]) -> Mapping[int, str]:
        """The names known now of these users; asks, without waiting, for those that are not."""
        self._reread_file()
        wanted = set(uids)
        self._ask(uid for uid in wanted if uid not in self._in_file)
        names = {uid: name for uid in wanted if (name := self._in_file.get(uid) or self._answers.get(uid))}
        if names != self.known:
            self.known = names
        return self.known

    def _reread_file(self) -> None:
        try:
            found = os.stat(self._passwd)
            stamp = (found.st_mtime_ns, found.st_ino, found.st_size)
            if stamp == self._stamp:
                return
            with self._passwd.open("rb") as file:
                text = file.read(_MOST_PASSWD_BYTES)
        except OSError:
            return
        self._in_file, self._stamp = parse_passwd(text.decode("utf-8", "replace")), stamp

    def _ask(self, uids: Iterable[int]) -> None:
        if self._look_up is None:
            return
        now_s, asked = self._monotonic(), False
        for uid in uids:
            asked_s = self._asked_s.get(uid)
            if asked_s is not None and now_s - asked_s < _REFRESH_S:
                continue
            if asked_s is None and len(self._asked_s) >= _MOST_NAMES:
                continue
            self._asked_s[uid] = now_s
            self._all_answered.clear()
            self._questions.put(uid)
            asked = True
        if asked:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._answer, args=(self._look_up,), name="user-names", daemon=True
                )
                self._thread.start()
            self._all_answered.wait(_AT_ONCE_S)

    def _answer(self, look_up: Callable[[int], str | None]) -> None:
        while True:
            uid = self._questions.get()
            try:
                self._answers[uid] = look_up(uid)
            except Exception:
                # What we knew stays: a directory that is down has not renamed anybody.
                self._answers.setdefault(uid, None)
            if self._questions.empty():
                self._all_answered.set()


def host_user_names(procfs: Path) -> UserNames:
    """The names of the machine whose processes this procfs shows, which may not be those of our container."""
    root_of_first = procfs / "1" / "root"
    try:
        theirs, ours = os.stat(root_of_first), os.stat("/")
    except OSError:
        return UserNames(PASSWD, name_of_uid)
    if (theirs.st_dev, theirs.st_ino) == (ours.st_dev, ours.st_ino):
        return UserNames(PASSWD, name_of_uid)
    return UserNames(root_of_first / "etc" / "passwd")


def parse_passwd(text: str) -> dict[int, str]:
    """Names by uid; of two that share a uid, the first, as the system does. Bad lines are left out."""
    names: dict[int, str] = {}
    for line in text.splitlines():
        fields = line.split(":")
        if len(fields) >= 4 and fields[0] and _UID.fullmatch(fields[2]):
            names.setdefault(int(fields[2]), fields[0])
    return names


def name_of_uid(uid: int) -> str | None:
    """What the system's name services answer. May block for as long as they like."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return None
