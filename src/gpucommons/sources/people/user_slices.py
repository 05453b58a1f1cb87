"""CPU and memory of users by their cgroup slices: `ds01-<group>-<user>.slice` of DS01, else `user-<uid>.slice`.

On a DS01 node only DS01's slices count, as in its exporter; they do not include login sessions. Cgroups of versions 1
and 2 are read. The CPU seconds of a user never decrease, although slices end with the user's sessions.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from gpucommons.base.text import lines_of, parse_decimal
from gpucommons.model.workloads import UserSlice

_USER_SLICE = re.compile(r"user-(\d{1,10})\.slice", re.ASCII)
_MAX_DEPTH = 3
_DS01 = "ds01.slice"


class SliceUse(NamedTuple):
    """One slice. `key` distinguishes it from a later slice with the same path."""

    key: tuple[str, int]
    user: str
    group: str
    cpu_ns: int | None
    memory_bytes: int | None


@dataclass(slots=True)
class CpuTotals:
    """CPU time by user and group, summed over slices that come and go. Pure; never decreases."""

    _last_ns: dict[tuple[str, int], int] = field(default_factory=dict)
    _total_ns: dict[tuple[str, str], int] = field(default_factory=dict)

    def step(self, uses: list[SliceUse]) -> tuple[UserSlice, ...]:
        last_ns: dict[tuple[str, int], int] = {}
        memory: dict[tuple[str, str], int] = {}
        for use in uses:
            who = (use.user, use.group)
            if use.memory_bytes is not None:
                memory[who] = memory.get(who, 0) + use.memory_bytes
            if use.cpu_ns is not None:
                before = self._last_ns.get(use.key, 0)
                # A counter that decreased was reset.
                gained = use.cpu_ns - before if use.cpu_ns >= before else use.cpu_ns
                self._total_ns[who] = self._total_ns.get(who, 0) + gained
                last_ns[use.key] = use.cpu_ns
        self._last_ns = last_ns
        present = dict.fromkeys((use.user, use.group) for use in uses)
        return tuple(UserSlice(*who, self._seconds(who), memory.get(who)) for who in present)

    def _seconds(self, who: tuple[str, str]) -> float | None:
        total_ns = self._total_ns.get(who)
        return None if total_ns is None else total_ns / 1e9


class SliceReader:
    """`slice_owner` parses group and user from DS01's slice names."""

    def __init__(self, cgroup: Path, slice_owner: Callable[[str], tuple[str, str] | None]) -> None:
        self._cgroup = cgroup
        self._slice_owner = slice_owner

    def read(
        self, name_of: Callable[[int], str], group_of: Mapping[str, str], user_of_slice: Mapping[str, str]
    ) -> list[SliceUse]:
        """`user_of_slice` maps shortened names in slices to user names. Raises OSError if there are no cgroups."""
        unified = (self._cgroup / "cgroup.controllers").exists()
        root = self._cgroup if unified else self._cgroup / "cpuacct"
        if not unified:
            os.stat(root)
        uses = []
        if (root / _DS01).is_dir():
            for path in _slices(root, _DS01):
                owner = self._slice_owner(path.name)
                if owner is not None:
                    user = user_of_slice.get(owner[1])
                    group = owner[0] if user is None else group_of.get(user, owner[0])
                    uses.append(self._use(path, root, unified, user or owner[1], group))
            return uses
        for path in _slices(root, "user.slice"):
            if match := _USER_SLICE.fullmatch(path.name):
                user = name_of(int(match[1]))
                uses.append(self._use(path, root, unified, user, group_of.get(user, "")))
        return uses

    def _use(self, path: Path, root: Path, unified: bool, user: str, group: str) -> SliceUse:
        try:
            inode = os.stat(path).st_ino
        except OSError:
            inode = 0
        if unified:
            cpu_ns = _usage_ns(_text(path / "cpu.stat"))
            memory = _whole(_text(path / "memory.current"))
        else:
            cpu_ns = _whole(_text(path / "cpuacct.usage"))
            in_memory = self._cgroup / "memory" / path.relative_to(root)
            memory = _whole(_text(in_memory / "memory.usage_in_bytes"))
        return SliceUse((str(path), inode), user, group, cpu_ns, memory)


def _slices(root: Path, name: str, depth: int = 0) -> Iterator[Path]:
    """The slices below a slice; one that is removed meanwhile is left out."""
    try:
        inside = [entry for entry in os.scandir(root / name) if entry.name.endswith(".slice")]
    except OSError:
        return
    for entry in inside:
        yield Path(entry.path)
        if depth < _MAX_DEPTH:
            yield from _slices(root / name, entry.name, depth + 1)


def _usage_ns(stat: str | None) -> int | None:
    for line in lines_of(stat or ""):
        name, _, value = line.partition(" ")
        if name == "usage_usec":
            microseconds = _whole(value)
            return None if microseconds is None else microseconds * 1000
    return None


def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return None


def _whole(text: str | None) -> int | None:
    return None if text is None else parse_decimal(text.strip())
