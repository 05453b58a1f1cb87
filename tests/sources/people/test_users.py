"""Names, groups and slices of users: each is billed under one group, CPU seconds never decrease."""

import hashlib
from pathlib import Path

import pytest

from gpucommons.model.workloads import Container, ContainerState, UserSlice
from gpucommons.owners.slots import slice_owner
from gpucommons.sources.people.groups import membership, slice_name
from gpucommons.sources.people.user_slices import CpuTotals, SliceUse
from gpucommons.sources.people.users import UsersReader
from gpucommons.sources.source import SourceAbsent
from sources.people.test_utmp import record

PASSWD = """root:x:0:0:root:/root:/bin/bash
www-data:x:33:33::/var/www:/usr/sbin/nologin
alice:x:1000:1000:Alice:/home/alice:/bin/bash
bob:x:1001:1500::/home/bob:/bin/bash
carol:x:1002:1002::/home/carol:/bin/bash
dan:x:1003:100::/home/dan:/bin/bash
nonsense
:x:1009:1009::/:
broken:x:many:1::/:
nobody:x:65534:65534::/:
"""
GROUP = """root:x:0:
users:x:100:
docker:x:998:alice,bob
alice:x:1000:
carol:x:1002:
students:x:1500:carol,ghost
staff:x:1400:carol,alice
half a line
empty:x:1700:
"""


def test_each_user_is_billed_under_one_group() -> None:
    found = membership(PASSWD, GROUP)
    assert found.group_of == {"alice": "staff", "bob": "students", "carol": "staff", "dan": "users"}
    assert found.members == {
        "users": frozenset({"dan"}),
        "students": frozenset({"bob", "carol"}),
        "staff": frozenset({"alice", "carol"}),
    }


def use(inode: int, cpu_s: float | None, user: str = "alice", memory: int | None = 5, path: str = "a") -> SliceUse:
    return SliceUse((path, inode), user, "staff", None if cpu_s is None else round(cpu_s * 1e9), memory)


def test_cpu_seconds_never_go_back() -> None:
    totals = CpuTotals()
    assert totals.step([use(1, 10)]) == (UserSlice("alice", "staff", 10.0, 5),)
    assert totals.step([use(1, 12), use(7, 3, path="b")])[0].cpu_seconds == 15.0
    assert totals.step([use(1, 12)])[0].cpu_seconds == 15.0, "a slice that ended leaves what it used"
    assert totals.step([]) == ()
    assert totals.step([use(2, 1)])[0].cpu_seconds == 16.0, "the same path again is another slice"
    assert totals.step([use(2, 0.5)])[0].cpu_seconds == 16.5, "a counter that was reset"
    assert totals.step([use(2, None, memory=None)])[0] == UserSlice("alice", "staff", 16.5, None)


def test_unknown_is_not_zero() -> None:
    assert CpuTotals().step([use(1, None, memory=None)]) == (UserSlice("alice", "staff", None, None),)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text(PASSWD)
    (tmp_path / "etc/group").write_text(GROUP)
    (tmp_path / "run").mkdir()
    (tmp_path / "proc/4242").mkdir(parents=True)
    return tmp_path


def add_slice(root: Path, path: str, cpu_us: str, memory: str) -> None:
    directory = root / "sys/fs/cgroup" / path
    directory.mkdir(parents=True)
    (directory / "cpu.stat").write_text(f"usage_usec {cpu_us}\nuser_usec 1\n")
    (directory / "memory.current").write_text(f"{memory}\n")


def source(root: Path) -> UsersReader:
    container = Container("c" * 64, "thesis", "docker", ContainerState.RUNNING, init_pid=4242)
    gone = Container("d" * 64, "gone", "docker", ContainerState.RUNNING, init_pid=5)
    return UsersReader(
        root,
        root / "proc",
        root / "sys/fs/cgroup",
        slice_owner,
        root / "groups",
        lambda: {container.id: container, gone.id: gone},
    )


def unified(root: Path) -> None:
    (root / "sys/fs/cgroup").mkdir(parents=True)
    (root / "sys/fs/cgroup/cgroup.controllers").write_text("cpu memory")


def slices(root: Path) -> dict[tuple[str, str], tuple[float | None, int | None]]:
    return {(each.user, each.group): (each.cpu_seconds, each.memory_bytes) for each in source(root).read().slices}


def test_ds01s_slices_without_login_sessions(root: Path) -> None:
    unified(root)
    add_slice(root, "ds01.slice/ds01-students.slice/ds01-students-bob.slice", "5000000", "100")
    add_slice(root, "ds01.slice/ds01-staff.slice/ds01-staff-anna\\x2dlena.slice", "7000000", "nonsense")
    add_slice(root, "user.slice/user-1001.slice", "2000000", "11")
    add_slice(root, "user.slice/user-1000.slice", "1000000", "12")
    assert slices(root) == {("bob", "students"): (5.0, 100), ("anna-lena", "staff"): (7.0, None)}


def test_systemds_slices_on_other_nodes(root: Path) -> None:
    unified(root)
    add_slice(root, "user.slice/user-1000.slice", "1000000", "12")
    add_slice(root, "user.slice/user-4711.slice", "broken", "13")
    assert slices(root) == {("alice", "staff"): (1.0, 12), ("4711", ""): (None, 13)}


def test_ds01s_groups_and_the_full_names_of_their_members(root: Path) -> None:
    unified(root)
    (root / "groups").mkdir()
    (root / "groups/student.members").write_text("# 2026\nh.baker@example.org  # thesis\n\nalice\n")
    (root / "groups/faculty.members").write_text("")
    (root / "groups/archived.members").write_text("left\n")
    add_slice(root, "ds01.slice/ds01-student.slice/ds01-student-h_baker.slice", "5000000", "100")
    add_slice(root, "ds01.slice/ds01-guest.slice/ds01-guest-zoe.slice", "1000000", "7")
    found = source(root).read()
    assert found.group_of == {"h.baker@example.org": "student", "alice": "student"}
    assert found.members == {"faculty": frozenset(), "student": frozenset({"h.baker@example.org", "alice"})}
    assert slices(root) == {("h.baker@example.org", "student"): (5.0, 100), ("zoe", "guest"): (1.0, 7)}


@pytest.mark.parametrize(
    ("user", "name"),
    [
        ("alice", "alice"),
        ("john.doe", "john_doe"),
        ("h.baker@example.org", "h_baker"),
        ("_a--b._c_", "a_b_c"),
        ("x" * 33, "x" * 27 + "_" + hashlib.md5(b"x" * 33).hexdigest()[:4]),
    ],
)
def test_a_users_name_in_a_slice(user: str, name: str) -> None:
    assert slice_name(user) == name


def test_cgroups_of_version_1(root: Path) -> None:
    for controller, name, value in (
        ("cpuacct", "cpuacct.usage", "5000000000"),
        ("memory", "memory.usage_in_bytes", "9"),
    ):
        directory = root / "sys/fs/cgroup" / controller / "user.slice/user-1000.slice"
        directory.mkdir(parents=True)
        (directory / name).write_text(value)
    assert source(root).read().slices == (UserSlice("alice", "staff", 5.0, 9),)


def test_missing_cgroups_and_utmp_do_not_affect_the_rest(root: Path) -> None:
    found = source(root).read()
    assert found.slices == ()
    assert found.ssh_sessions is None, "unknown, not zero sessions"
    (root / "run/systemd/sessions").mkdir(parents=True)
    (root / "run/systemd/sessions/1").write_text("USER=alice\nSTATE=active\nSERVICE=sshd\nLEADER=4242\n")
    assert source(root).read().ssh_sessions == {"alice": 1}, "of logind, without utmp"
    assert found.names[1000] == "alice"
    assert list(found.container_uids) == ["c" * 64]
    (root / "run/utmp").write_bytes(record("alice", "10.0.0.7", 4242) + record("bob", "10.0.0.8", 1))
    assert source(root).read().ssh_sessions == {"alice": 1}
    (root / "run/utmp").write_bytes(b"")
    assert source(root).read().ssh_sessions == {}


def test_the_same_files_give_the_same_mappings(root: Path) -> None:
    users = source(root)
    one, two = users.read(), users.read()
    assert one.names is two.names
    assert one.group_of is two.group_of
    assert one.container_uids is two.container_uids
    (root / "etc/passwd").write_text(PASSWD + "eve:x:1010:1010::/:/bin/sh\n")
    assert users.read().names[1010] == "eve"


def test_no_passwd_is_absent(tmp_path: Path) -> None:
    with pytest.raises(SourceAbsent):
        source(tmp_path).read()
