"""Cgroups of the real kernel, side by side, as those of containers are."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from gpucommons.base.cgroup_paths import CgroupLine, find_cgroup, read_cgroups
from needs import needs_root
from waiting import until

_ENTER = 'echo $$ > "$0/cgroup.procs" && exec "$@"'


class CgroupTree:
    """`mount` is the highest directory of the hierarchy, `above` the one that holds those of the tree."""

    def __init__(self, mount: Path, above: Path) -> None:
        self.mount = mount
        self.above = above

    def entering(self, name: str) -> tuple[str, ...]:
        """The beginning of a command that runs in this cgroup."""
        return ("sh", "-c", _ENTER, str(self.above / name))

    def pids(self, name: str) -> list[int]:
        return [int(line) for line in (self.above / name / "cgroup.procs").read_text().split()]


@contextlib.contextmanager
def limited_cgroups(**bytes: int) -> Iterator[CgroupTree]:
    """By name and limit of their memory, in the version of cgroups that limits memory on this machine."""
    lines = read_cgroups(os.getpid())
    version_1 = next((line for line in lines if "memory" in line.controllers.split(",")), None)
    limit = "memory.limit_in_bytes" if version_1 else "memory.max"
    with _tree(version_1 or _line_2(lines), bytes) as tree:
        if version_1 is None:
            with contextlib.suppress(OSError):
                (tree.above / "cgroup.subtree_control").write_text("+memory")
        for name, value in bytes.items():
            if not (tree.above / name / limit).exists():
                pytest.skip("needs cgroups that limit memory")
            (tree.above / name / limit).write_text(str(value))
        yield tree


def cgroups_of_version_2(*names: str) -> contextlib.AbstractContextManager[CgroupTree]:
    return _tree(_line_2(read_cgroups(os.getpid())), names)


def _line_2(lines: list[CgroupLine]) -> CgroupLine:
    return next((line for line in lines if not line.controllers), None) or pytest.skip("needs cgroups of version 2")


@contextlib.contextmanager
def _tree(own: CgroupLine, names: dict[str, int] | tuple[str, ...]) -> Iterator[CgroupTree]:
    needs_root()
    found = find_cgroup(own)
    if found is None:
        pytest.skip("needs mounted cgroups")
    # In version 2 a cgroup with processes has no controllers for those below it.
    above = (found.path if own.controllers else found.mount) / f"gpucommons-test-{uuid4().hex}"
    tree = CgroupTree(found.mount, above)
    with contextlib.ExitStack() as made:
        for directory in (above, *(above / name for name in names)):
            try:
                directory.mkdir()
            except OSError as error:
                pytest.skip(f"needs cgroups that can be written: {error}")
            made.callback(directory.rmdir)
        try:
            yield tree
        finally:
            until(lambda: not any(tree.pids(name) for name in names), "the cgroups are empty")
