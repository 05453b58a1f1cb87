"""The dialect and Debian's node_exporter at the same time, on a machine with mounts and devices of the test; and a file
system that hangs (a FUSE mount whose server does not answer, as an NFS mount whose server died)."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from faces.dialects.nodeexporter import inside
from faces.dialects.nodeexporter.comparison import Comparison, of_the_machine
from faces.dialects.nodeexporter.views import views
from needs import needs_device, needs_program, needs_root
from parsing import parsed
from testbeds import fuse
from testbeds.node_exporter import PROGRAM

ROUNDS = 5
APART = ("unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "--kill-child")


def played(scene: str, root: Path) -> Any:
    needs_program("unshare", "ip", PROGRAM)
    needs_root()
    script = Path(inside.__file__)
    done = subprocess.run(
        [*APART, sys.executable, str(script), scene, str(root), str(ROUNDS)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def rounds(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str, str]]:
    return [tuple(texts) for texts in played("compare", tmp_path_factory.mktemp("mounts"))]


@pytest.mark.long
def test_both_see_the_same_machine(rounds: list[tuple[str, str, str]]) -> None:
    comparison = Comparison()
    for before, theirs, after in rounds:
        comparison.add(before, theirs, after)
    assert comparison.wrong == []
    assert list(comparison.far.values()) == []
    assert comparison.compared > 300, "there are series to compare"


@pytest.mark.long
def test_both_see_this_machine_as_it_is() -> None:
    """Without namespaces and without root: this machine as it is."""
    comparison = Comparison()
    for before, theirs, after in views(ROUNDS):
        comparison.add(before, theirs, after)
    assert comparison.wrong == []
    assert list(comparison.far.values()) == []


@pytest.mark.long
def test_the_mounts_and_the_device_of_the_test_are_among_them(rounds: list[tuple[str, str, str]]) -> None:
    ours = of_the_machine(rounds[0][0])
    sizes = {
        dict(labels)["mountpoint"].rpartition("/")[2]: value
        for (name, labels), value in ours.items()
        if name == "node_filesystem_size_bytes"
    }
    assert {sizes["with space"], sizes["with\ttab"], sizes["read only"]} == {float(1 << 20)}
    assert sum(name.startswith("one of many") for name in sizes) == inside.MANY_MOUNTS, "the whole mount table is read"
    assert ("node_network_receive_bytes_total", (("device", "made0"),)) in ours


@pytest.mark.long
def test_a_difference_is_seen(rounds: list[tuple[str, str, str]]) -> None:
    """The comparison detects a counter behind ours, a gauge far off, a different static value and a missing series."""

    def wrong(old: str, new: str) -> bool:
        before, theirs, after = rounds[0]
        assert old in theirs
        comparison = Comparison()
        comparison.add(before, theirs.replace(old, new), after)
        return bool(comparison.wrong or comparison.far)

    assert wrong("\nnode_forks_total ", "\nnode_forks_total 9")
    assert wrong("\nnode_memory_MemFree_bytes ", "\nnode_memory_MemFree_bytes 1")
    assert wrong("\nnode_boot_time_seconds ", "\nnode_boot_time_seconds -")
    assert wrong('device="made0"', 'device="made1"')


@pytest.mark.long
def test_a_hung_file_system_loses_only_its_own_series(tmp_path: Path) -> None:
    needs_device("/dev/fuse")
    seen = played("hung", tmp_path)
    for text in (seen["while_hung"], seen["sampled"]):
        series = parsed(text)
        assert values_of(series, tmp_path / "hung") == {"node_filesystem_device_error": 1}
        assert values_of(series, tmp_path / "lives")["node_filesystem_size_bytes"] == 1 << 20
        assert ("node_load1", ()) in series
    after = values_of(parsed(seen["after"]), tmp_path / "hung")
    assert after["node_filesystem_device_error"] == 0
    assert after["node_filesystem_size_bytes"] == fuse.BLOCKS * fuse.BLOCK_BYTES
    assert after["node_filesystem_avail_bytes"] == fuse.AVAILABLE * fuse.BLOCK_BYTES
    assert after["node_filesystem_files_free"] == fuse.FILES_FREE
    assert seen["ended"] == 0, "a hung call does not prevent the agent from ending"


def values_of(series: dict[Any, float], mount_point: Path) -> dict[str, float]:
    label = ("mountpoint", str(mount_point))
    return {name: value for (name, labels), value in series.items() if label in labels}
