"""SSH sessions from utmp: both record sizes, any damage, and comparison with the system's tool."""

import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucommons.sources.people.users import Login, parse_utmp, ssh_sessions
from needs import needs_program
from unhurried import unhurried

SHORT, LONG = 384, 400


def record(user: str, host: str, pid: int = 4242, type: int = 7, line: str = "pts/0", size: int = SHORT) -> bytes:
    head = struct.pack("=hxxi32s4s32s256s", type, pid, line.encode(), b"ts/0", user.encode(), host.encode())
    return head.ljust(size, b"\0")


def alive(pid: int) -> bool:
    return pid < 10_000


@pytest.mark.parametrize("size", [SHORT, LONG])
def test_sessions_by_user(size: int) -> None:
    data = b"".join(
        [
            record("reboot", "6.1.0", 0, type=2, line="~", size=size),
            record("alice", "10.0.0.7", 100, size=size),
            record("alice", "host.example", 101, size=size),
            record("bob", "2001:db8::7", 102, size=size),
            record("carol", "10.0.0.9", 103, type=8, size=size),
            record("dan", "10.0.0.9", 99_999, size=size),
            record("erin", ":0", 104, size=size),
            record("frank", "tmux(1234).%0", 105, size=size),
            record("grace", "", 106, line="tty1", size=size),
            record("heidi", "10.1.1.1 via mosh [1234]", 107, size=size),
        ]
    )
    assert ssh_sessions(parse_utmp(data), alive) == {"alice": 2, "bob": 1}


def test_a_length_that_fits_both_sizes_is_decided_by_the_content() -> None:
    for size in (SHORT, LONG):
        data = b"".join(record("alice", "10.0.0.7", 100 + n, size=size) for n in range(9600 // size))
        assert len(data) == 9600
        assert ssh_sessions(parse_utmp(data), alive) == {"alice": 9600 // size}


def test_a_truncated_record_is_left_out() -> None:
    data = record("alice", "10.0.0.7") + record("bob", "10.0.0.8")[:200]
    assert ssh_sessions(parse_utmp(data), alive) == {"alice": 1}


@unhurried()
@given(st.binary(max_size=1200))
def test_no_bytes_raise(data: bytes) -> None:
    ssh_sessions(parse_utmp(data), alive)


def test_records_of_the_systems_tool(tmp_path: Path) -> None:
    needs_program("utmpdump")
    when = "[2026-11-15T10:00:00,000000+00:00]"
    text = (
        f"[7] [00123] [ts/0] [alice   ] [pts/0       ] [10.0.0.7            ] [10.0.0.7       ] {when}\n"
        f"[8] [00124] [ts/1] [        ] [pts/1       ] [                    ] [0.0.0.0        ] {when}\n"
    )
    made = subprocess.run(["utmpdump", "--reverse"], input=text.encode(), capture_output=True, check=True).stdout
    assert parse_utmp(made) == [Login(7, 123, "pts/0", "alice", "10.0.0.7"), Login(8, 124, "pts/1", "", "")]
