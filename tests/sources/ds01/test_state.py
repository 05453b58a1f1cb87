"""DS01's state file: both notations of a slot, and invalid entries."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpucommons.model.workloads import Ds01Entry
from gpucommons.sources.ds01.state import Ds01StateReader
from gpucommons.sources.source import SourceAbsent, SourceError

GOOD = {"user": "alice", "gpu_id": "1.0", "allocated_at": "2026-11-15T10:00:00Z", "priority": 10, "stopped_at": None}
BAD: list[object] = [
    None,
    [],
    "x",
    7,
    {},
    {"user": "x"},
    {"gpu_id": None},
    {"gpu_id": ""},
    {"gpu_id": True},
    {"gpu_id": []},
]


def written(tmp_path: Path, content: object) -> Ds01StateReader:
    file = tmp_path / "gpu-state.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return Ds01StateReader(file)


def test_entries(tmp_path: Path) -> None:
    stopped = {**GOOD, "gpu_id": 3, "stopped_at": "2026-11-15T11:00:00Z", "user": None}
    found = written(tmp_path, {"allocations": {"thesis": GOOD, "old": stopped}, "last_updated": "now"}).read()
    assert found.entries == (
        Ds01Entry("thesis", "alice", "1.0", 1794736800.0),
        Ds01Entry("old", "", "3", 1794736800.0, stopped=True),
    )
    assert found.disk_total_bytes


def test_the_disk_counts_what_is_reserved_for_root_as_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in DS01: total is used plus free."""
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_frsize=10, f_blocks=100, f_bfree=30, f_bavail=25))
    found = Ds01StateReader(tmp_path / "gpu-state.json").read()
    assert (found.disk_total_bytes, found.disk_used_bytes, found.disk_free_bytes) == (1000, 700, 300)


def test_bad_entries_are_left_out(tmp_path: Path) -> None:
    content = {"allocations": {**{f"bad{n}": value for n, value in enumerate(BAD)}, "thesis": GOOD, "": GOOD}}
    found = written(tmp_path, content).read()
    assert [entry.container for entry in found.entries or ()] == ["thesis"]


@pytest.mark.parametrize("content", ["{}", "[]", '{"allocations": 7}', "null"])
def test_a_file_without_allocations(tmp_path: Path, content: str) -> None:
    assert written(tmp_path, content).read().entries == ()


def test_garbage_is_a_failure_and_the_next_file_is_read(tmp_path: Path) -> None:
    source = written(tmp_path, "{ half a fi")
    with pytest.raises(SourceError):
        source.read()
    (tmp_path / "gpu-state.json").write_text(json.dumps({"allocations": {"thesis": GOOD}}))
    assert len(source.read().entries or ()) == 1


def test_newer_installs_have_no_file_and_other_machines_no_directory(tmp_path: Path) -> None:
    found = Ds01StateReader(tmp_path / "gpu-state.json").read()
    assert found.entries is None
    assert found.disk_total_bytes
    with pytest.raises(SourceAbsent):
        Ds01StateReader(tmp_path / "none" / "gpu-state.json").read()
