"""SSH sessions from logind's files: which count, and any damage."""

import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from gpucommons.sources.people.users import parse_session, read_ssh_sessions

SSH = "# comment\nUID=1000\nUSER=alice\nACTIVE=1\nSTATE=active\nREMOTE=1\nSERVICE=sshd\nLEADER=42\n"


def test_open_ssh_sessions_count_by_user(tmp_path: Path) -> None:
    files = {
        "1": SSH,
        "2": SSH.replace("42", "43").replace("active", "online"),
        "3": SSH.replace("alice", "bob"),
        "4": SSH.replace("sshd", "gdm-password"),
        "5": SSH.replace("STATE=active", "STATE=closing"),
        "6": SSH.replace("42", "99"),
        "7": SSH.replace("USER=alice\n", ""),
        "8": "",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    os.mkfifo(tmp_path / "1.ref")
    (tmp_path / "9").symlink_to(tmp_path / "1")
    assert read_ssh_sessions(tmp_path, lambda pid: pid in (42, 43)) == {"alice": 2, "bob": 1}


def test_without_the_directory_the_sessions_are_unknown(tmp_path: Path) -> None:
    assert read_ssh_sessions(tmp_path / "none", lambda pid: True) is None
    assert read_ssh_sessions(tmp_path, lambda pid: True) == {}


@given(st.text())
def test_any_text_is_a_session_or_none(text: str) -> None:
    found = parse_session(f"{SSH}{text}")
    assert found is None or (found[0] and found[1] >= 0)


def test_a_leader_that_is_not_a_pid_is_left_out() -> None:
    for leader in ("", "-1", "4.2", "9" * 4000, "४"):
        assert parse_session(SSH.replace("42", leader)) is None
