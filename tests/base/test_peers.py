"""What procfs shows of a peer: its container, and whether it is in a pod. Real processes in control groups."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from gpucommons.base.peers import _appears_local, is_local, look_at
from gpucommons.pauser.stopped import FreezerMounts
from needs import needs_root
from waiting import until_removed

OUTER, INNER = "a" * 64, "b" * 64


@contextmanager
def control_groups(*names: str) -> Iterator[Path]:
    """Each in the one before it; the last one."""
    needs_root()
    mounts = FreezerMounts()
    path = mounts.v2 or mounts.v1
    if path is None:
        pytest.skip("needs a mounted freezer")
    with ExitStack() as stack:
        for name in (f"gpucommons-test-{uuid4().hex}", *names):
            path /= name
            try:
                path.mkdir()
            except OSError as error:
                pytest.skip(f"needs cgroups that can be written: {error}")
            stack.callback(until_removed, path)
        yield path


@contextmanager
def process_in(group: Path) -> Iterator[int]:
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            (group / "cgroup.procs").write_text(str(process.pid))
            yield process.pid
        finally:
            process.kill()


def test_the_innermost_container_of_a_peer() -> None:
    with control_groups(OUTER, INNER) as group, process_in(group) as pid:
        assert (look_at(pid).container, look_at(pid).in_pod) == (INNER, False)
        assert look_at(os.getpid()).container is None


def test_a_peer_in_a_pod() -> None:
    with control_groups(f"kubepods-pod{uuid4()}.slice", INNER) as group, process_in(group) as pid:
        assert (look_at(pid).container, look_at(pid).in_pod) == (INNER, True)
    assert look_at(0).in_pod is None, "from a pid namespace that is not below ours: it is out of sight"


def test_a_process_that_has_ended_is_not_local() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert not is_local(process.pid)
    assert not _appears_local(process.pid)


LOOKS = "import sys; from gpucommons.base.peers import look_at; input(); print(look_at(int(sys.argv[1])).container)"


def test_a_peer_in_our_own_container_is_in_none() -> None:
    with control_groups(OUTER) as group, process_in(group) as pid:
        command = [sys.executable, "-c", LOOKS, str(pid)]
        path = os.pathsep.join(filter(None, sys.path))
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
        ) as looking:
            (group / "cgroup.procs").write_text(str(looking.pid))
            assert looking.communicate("\n")[0] == "None\n"
