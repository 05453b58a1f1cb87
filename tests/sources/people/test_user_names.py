"""Names come from the passwd file or, without waiting, from the system's name services."""

import os
import pwd
import threading
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from gpucommons.sources.people.user_names import UserNames, host_user_names, name_of_uid, parse_passwd

LINES = "root:x:0:0:root:/root:/bin/bash\nalice:x:1000:1000::/home/alice:/bin/sh\ntoor:x:0:0::/:/bin/sh\n"


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_the_file_answers(tmp_path: Path) -> None:
    passwd = tmp_path / "passwd"
    passwd.write_text(LINES)
    assert UserNames(passwd).see([0, 1000, 1001]) == {0: "root", 1000: "alice"}


def test_the_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    passwd = tmp_path / "passwd"
    passwd.write_text(LINES)
    names = UserNames(passwd)
    names.see([1000])
    passwd.write_text(LINES.replace("alice", "alicia"))
    assert names.see([1000]) == {1000: "alicia"}
    passwd.unlink()
    assert names.see([1000]) == {1000: "alicia"}


def test_the_same_answer_is_the_same_value(tmp_path: Path) -> None:
    passwd = tmp_path / "passwd"
    passwd.write_text(LINES)
    names = UserNames(passwd)
    assert names.see([1000]) is names.see([1000])


def all_answered(names: UserNames) -> bool:
    """Waits for the lookups that were started."""
    answered = threading.Event()
    names._thread.submit(answered.set)
    return answered.wait(10)


def test_a_hung_directory_service_does_not_block(tmp_path: Path) -> None:
    passwd = tmp_path / "passwd"
    passwd.write_text(LINES)
    asked, let_go, answered = threading.Event(), threading.Event(), threading.Event()

    def slow(uid: int) -> str:
        asked.set()
        let_go.wait(10)
        answered.set()
        return f"user{uid}"

    names = UserNames(passwd, slow)
    assert names.see([1000, 5000]) == {1000: "alice"}
    assert asked.wait(10)
    assert names.see([1000, 5000]) == {1000: "alice"}
    let_go.set()
    assert answered.wait(10)
    assert all_answered(names)
    assert names.see([1000, 5000]) == {1000: "alice", 5000: "user5000"}


def test_each_user_is_looked_up_once_and_again_after_a_while() -> None:
    clock, asked = Clock(), []

    def look_up(uid: int) -> str | None:
        asked.append(uid)
        return None

    names = UserNames(Path("/nonexistent/passwd"), look_up, clock)
    for _ in range(5):
        names.see([7])
    assert all_answered(names)
    assert asked == [7]
    clock.now_s = 601.0
    names.see([7])
    assert all_answered(names)
    assert asked == [7, 7]


def test_a_failing_directory_service_keeps_known_names() -> None:
    clock, answers = Clock(), ["alice"]

    def look_up(uid: int) -> str:
        return answers.pop()

    names = UserNames(Path("/nonexistent/passwd"), look_up, clock)
    names.see([7])
    assert all_answered(names)
    clock.now_s = 601.0
    names.see([7])
    assert all_answered(names)
    assert names.see([7]) == {7: "alice"}


def test_the_number_of_lookups_is_limited() -> None:
    asked: list[int] = []
    names = UserNames(Path("/nonexistent/passwd"), lambda uid: asked.append(uid))
    names.see(range(20_000))
    assert all_answered(names)
    assert len(asked) == 10_000


def test_the_system_is_queried() -> None:
    assert name_of_uid(os.getuid()) == pwd.getpwuid(os.getuid()).pw_name
    assert name_of_uid(2**31 + 12345) is None
    assert name_of_uid(2**64) is None


def test_a_container_with_the_hosts_processes_uses_the_hosts_names(tmp_path: Path) -> None:
    """The container's passwd file has other users with the same uids."""
    etc = tmp_path / "1" / "root" / "etc"
    etc.mkdir(parents=True)
    (etc / "passwd").write_text("hostess:x:0:0::/:/bin/sh\n")
    names = host_user_names(tmp_path)
    assert names.see([0, 2**30]) == {0: "hostess"}


def test_on_the_host_our_own_names_are_used(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "root").symlink_to("/")
    expected = {os.getuid(): pwd.getpwuid(os.getuid()).pw_name}
    assert host_user_names(tmp_path).see([os.getuid()]) == expected
    assert host_user_names(tmp_path / "nowhere").see([os.getuid()]) == expected


@given(st.text())
def test_any_passwd_file(text: str) -> None:
    assert all(name for name in parse_passwd(text).values())


def test_invalid_lines_are_left_out() -> None:
    assert parse_passwd("x\n::\n:x:5:\na:x:b:c\nb:x:" + "9" * 5000 + ":\nc:x:7:7\n+::::::\n") == {7: "c"}
