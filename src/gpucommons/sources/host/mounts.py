"""The mount table of a node, from /proc/1/mounts. Pure but for reading that one file."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gpucommons.sources.host.procfs import read_whole

_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """`path` is where the mount is. `mount_point` is its name in node_exporter's label, which decodes less."""

    device: str
    path: str
    mount_point: str
    type: str
    read_only: bool


def parse_mounts(text: bytes, rootfs: PurePosixPath) -> Iterator[Mount]:
    """A mount below `rootfs` is named as it is on the host; two mounts of one name are one."""
    seen = set()
    # Not splitlines: a name may hold characters that Python takes for the end of a line.
    for line in text.decode("utf-8", "surrogateescape").rstrip("\n").split("\n"):
        device, place, kind, options, *_ = line.split(" ")
        # node_exporter decodes the blank and the tab only. Its label is kept, since dashboards and silences know it.
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
    """Those of the host's first process; where it is hidden from us (hidepid), our own."""
    try:
        return read_whole(procfs, "1/mounts")
    except FileNotFoundError:
        return read_whole(procfs, "mounts")
