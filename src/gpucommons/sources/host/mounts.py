"""The mount table of a node, from /proc/1/mounts. Pure except for `read_mounts`."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gpucommons.sources.host.procfs import read_whole

_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """`path` is the location of the mount; `mount_point` is node_exporter's label for it, which is decoded less."""

    device: str
    path: str
    mount_point: str
    type: str
    read_only: bool


def parse_mounts(text: bytes, rootfs: PurePosixPath) -> Iterator[Mount]:
    """A mount below `rootfs` gets its path on the host; duplicates are left out."""
    seen = set()
    # Not splitlines: a name may contain characters that Python treats as line breaks.
    for line in text.decode("utf-8", "surrogateescape").rstrip("\n").split("\n"):
        device, place, kind, options, *_ = line.split(" ")
        # node_exporter decodes only space and tab. Its label is kept, since dashboards and silences use it.
        named = _below(place.replace(r"\040", " ").replace(r"\011", "\t"), rootfs)
        path = _below(_ESCAPE.sub(lambda code: chr(int(code[1], 8)), place), rootfs)
        if (device, named, kind) not in seen:
            seen.add((device, named, kind))
            yield Mount(device, path, named, kind, "ro" in options.split(","))


def _below(place: str, rootfs: PurePosixPath) -> str:
    path = PurePosixPath(place)
    if rootfs == PurePosixPath("/") or not path.is_relative_to(rootfs):
        return place
    return f"/{path.relative_to(rootfs)}" if path != rootfs else "/"


def read_mounts(procfs: Path) -> bytes:
    """The mounts of the host's first process; our own if that process is hidden (hidepid)."""
    try:
        return read_whole(procfs, "1/mounts")
    except FileNotFoundError:
        return read_whole(procfs, "mounts")
