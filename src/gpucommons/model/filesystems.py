"""The mounted file systems at an instant: how large each is and what is left of it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Space:
    size_bytes: int
    free_bytes: int
    available_bytes: int
    files: int
    files_free: int


@dataclass(frozen=True, slots=True)
class Filesystem:
    """`space` is None where the file system answered with an error, or not in time."""

    device: str
    mount_point: str
    type: str
    read_only: bool
    space: Space | None


@dataclass(frozen=True, slots=True)
class FilesystemReading:
    filesystems: tuple[Filesystem, ...]
