"""The space of file systems within a deadline: one that hangs does not delay others and is not read again."""

import os
import threading
from pathlib import Path

import pytest

from gpucommons.model.host import Space
from gpucommons.sources.host.filesystems import SpaceReader, space_of
from waiting import until

SPACE = Space(10, 9, 8, 7, 6)


class Filesystems:
    """File systems in `hanging` do not answer until they are released."""

    def __init__(self, *hanging: str) -> None:
        self.hanging = {name: threading.Event() for name in hanging}
        self.calls: list[str] = []

    def ask(self, path: str) -> Space:
        self.calls.append(path)
        if path in self.hanging:
            self.hanging[path].wait(60)
        if path == "broken":
            raise OSError(5, "I/O error")
        return SPACE


def statfs_threads() -> int:
    return sum(thread.name == "statfs" for thread in threading.enumerate())


@pytest.mark.parametrize("hanging", [("a",), ("c",), ("a", "b", "d"), ("a", "b", "c", "d")])
def test_hanging_file_systems_do_not_affect_the_others(hanging: tuple[str, ...]) -> None:
    filesystems = Filesystems(*hanging)
    reader = SpaceReader(0.1, 1.0, filesystems.ask)
    before = statfs_threads()
    for _ in range(5):
        found = reader.read(["a", "b", "c", "d"])
        assert {path for path, space in found.items() if space is None} == set(hanging)
        assert reader.stuck == set(hanging)
    until(
        lambda: statfs_threads() - before == len(hanging), "one thread for each that hangs, and none for a second try"
    )
    assert all(filesystems.calls.count(path) == 1 for path in hanging), "it is not read again"

    for event in filesystems.hanging.values():
        event.set()
    until(lambda: not reader.stuck, "its call returns")
    assert reader.read(["a", "b", "c", "d"]) == dict.fromkeys("abcd", SPACE)
    until(lambda: statfs_threads() == before, "no thread is left")


def test_slow_file_systems_are_read_in_parallel() -> None:
    """None of the twelve answers before all of them are being read."""
    together = threading.Barrier(12)

    def ask(path: str) -> Space:
        together.wait(30)
        return SPACE

    reader = SpaceReader(0.1, 30.0, ask)
    assert reader.read([str(number) for number in range(12)]) == {str(number): SPACE for number in range(12)}
    assert not reader.stuck


def test_an_error_counts_as_an_answer() -> None:
    reader = SpaceReader(5.0, 5.0, Filesystems().ask)
    assert reader.read(["a", "broken", "a"]) == {"a": SPACE, "broken": None}
    assert not reader.stuck
    assert reader.read([]) == {}


def test_the_space_of_a_real_file_system(tmp_path: Path) -> None:
    space, answer = space_of(str(tmp_path)), os.statvfs(tmp_path)
    assert (space.size_bytes, space.files) == (answer.f_blocks * answer.f_bsize, answer.f_files)
    assert space.available_bytes <= space.free_bytes <= space.size_bytes
    with pytest.raises(OSError, match="No such file"):
        space_of(str(tmp_path / "no such place"))
