"""Every known form of /proc/PID/cgroup is parsed correctly, and no text raises an exception."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attribution.cgroup_vectors import DASHED, UNDERSCORED, VECTORS, C, K
from gpucommons.model.process_identity import CgroupIdentity
from gpucommons.owners.cgroup import CUT_SHORT, MAX_TEXT, identify

NOISE = st.text(string.ascii_lowercase + string.digits + "._-:\\@", min_size=1, max_size=20).filter(
    lambda s: (
        not s.startswith(("slurm", "user", "uid_", "job_"))
        and not s.endswith((".service", ".scope"))
        and "slurmstepd" not in s
        and s.strip(".") != ""
    )
)
CONTAINER_ROWS = {name: row for name, row in VECTORS.items() if row[1].container_id or row[1].job}
IDS = st.text("0123456789abcdef", min_size=64, max_size=64)


@pytest.mark.parametrize("row", VECTORS.values(), ids=VECTORS.keys())
def test_each_known_form(row: tuple[str, CgroupIdentity]) -> None:
    text, expected = row
    assert identify(text) == expected
    assert identify(text + "\n") == expected


@given(st.text(max_size=2000))
def test_any_text_is_parsed(text: str) -> None:
    identify(text)


FRAGMENTS = (
    "0:: 11:memory: / / / : docker pod kubepods .slice .scope .. - \n user@9.service "
    f"slurmstepd.scope slurm uid_1 job_2 {C} {K} {DASHED} {UNDERSCORED}"
).split(" ")


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=40))
def test_any_mix_of_fragments_is_parsed(parts: list[str]) -> None:
    found = identify("".join(parts))
    assert found.container_id in (None, C, K)
    assert found.pod_uid in (None, DASHED)


@pytest.mark.parametrize("name", CONTAINER_ROWS)
@given(before=st.lists(NOISE, max_size=3), after=st.lists(NOISE, max_size=3))
def test_unrelated_lines_do_not_change_the_result(name: str, before: list[str], after: list[str]) -> None:
    text, expected = CONTAINER_ROWS[name]
    noisy = []
    for line in text.splitlines():
        head, path = line.rsplit(":/", 1) if ":/" in line else (line, "")
        front = [] if path.startswith("..") else before
        noisy.append(head + ":/" + "/".join([*front, *([path] if path else []), *after]))
    assert identify("\n".join(noisy)) == expected


@given(outer=IDS, middle=IDS, inner=IDS)
def test_the_innermost_runtime_wins(outer: str, middle: str, inner: str) -> None:
    found = identify(f"0::/system.slice/docker-{outer}.scope/docker/{middle}/machine.slice/libpod-{inner}.scope")
    assert (found.runtime, found.container_id) == ("podman", inner)
    assert found.enclosing == tuple(dict.fromkeys(c for c in (middle, outer) if c != inner))


def test_docker_inside_a_pod_keeps_the_pod() -> None:
    found = identify(f"0::/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/cri-containerd-{K}.scope/docker/{C}")
    assert (found.container_id, found.pod_uid, found.enclosing) == (C, DASHED, (K,))


@pytest.mark.parametrize(
    "path",
    [
        f"/libpod{DASHED}/x",
        f"/machine.slice/libpod-conmon-{C}.scope",
        f"/system.slice/docker-{C[:-1]}.scope",
        f"/docker/{C}0",
        f"/docker/{C.upper()}",
        "/kubepods/podman/x",
        "/home/job_77/step_0",
        "/system.slice/slurmstepd.scope/system",
        "/slurm/uid_x/job_1",
        "/user.slice/user-x.slice",
    ],
)
def test_similar_names_are_not_containers(path: str) -> None:
    found = identify(f"0::{path}")
    assert (found.container_id, found.pod_uid, found.job, found.uid) == (None, None, None, None)


def test_a_container_below_an_unknown_parent_is_still_a_container() -> None:
    assert identify(f"3:memory:/lab/gpu/{C}") == CgroupIdentity(runtime="unknown", container_id=C)


def test_lines_that_disagree_are_noted() -> None:
    found = identify(f"11:memory:/docker/{K}/docker/{C}\n1:name=systemd:/docker/{'a' * 64}\n")
    assert found.container_id == C
    assert found.note is not None
    assert "different containers" in found.note


def test_an_enclosing_container_on_another_line_does_not_disagree() -> None:
    assert identify(f"11:memory:/docker/{K}/docker/{C}\n1:name=systemd:/docker/{K}\n").note is None


def test_a_job_and_a_container_on_different_lines_are_both_found() -> None:
    found = identify(f"8:memory:/slurm/uid_1000/job_7/step_0\n1:name=systemd:/docker/{C}\n0::/a.service")
    assert found == CgroupIdentity(runtime="docker", container_id=C, job="7", uid=1000)


def test_a_line_that_the_user_may_write_does_not_override_one_of_the_runtime() -> None:
    """On a host with both hierarchies, a user may create cgroups in one and the runtime in the other."""
    own = f"0::/user.slice/user-1000.slice/user@1000.service/docker-{K}.scope/docker/{'a' * 64}\n"
    found = identify(f"11:memory:/docker/{C}\n{own}")
    assert (found.container_id, found.delegated) == (C, False)
    forged = "0::/user.slice/user-1000.slice/user@1000.service/slurm/uid_0/job_9/step_0\n"
    assert identify(f"11:memory:/docker/{C}\n{forged}").job is None


@pytest.mark.parametrize(
    ("text", "scope"),
    [
        ("0::/user.slice/user-1000.slice/session-4.scope", "session-4.scope"),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/tmux-1.scope/inner", "tmux-1.scope"),
        ("0::/user.slice/user-1000.slice/user@1000.service/init.scope", None),
        ("0::/init.scope", None),
        ("1:name=systemd:/user.slice/user-1000.slice/session-4.scope\n2:cpu:/a.service", "session-4.scope"),
        (f"0::/system.slice/docker-{C}.scope", None),
        ("0::/system.slice/slurmstepd.scope/job_7/step_0", None),
        (f"1:cpu:/docker/{C}\n0::/system.slice/containerd.service", None),
    ],
)
def test_the_scope_of_a_process_in_no_container_or_job(text: str, scope: str | None) -> None:
    assert identify(text).scope == scope


def test_a_huge_file_is_read_up_to_a_limit() -> None:
    line = "0::/" + "a/" * MAX_TEXT
    assert identify(line + f"docker/{C}").note == CUT_SHORT
    assert identify(f"1:memory:/docker/{C}\n" + line).container_id == C
    assert identify("0::/x\n" * 1_000_000 + f"1:memory:/docker/{C}").container_id is None


def test_too_many_digits_are_not_a_number() -> None:
    assert identify("0::/user.slice/user-" + "9" * 5000 + ".slice").uid is None
    assert identify("0::/slurm/uid_1/job_" + "9" * 5000).job is None


def test_unicode_digits_are_not_digits() -> None:
    assert identify("0::/user.slice/user-١٠٠٠.slice").uid is None


def test_a_removed_cgroup_of_a_live_process_is_still_parsed() -> None:
    assert identify(f"0::/system.slice/docker-{C}.scope (deleted)\n").container_id == C
