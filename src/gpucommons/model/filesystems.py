"""The mounted file systems at an instant: size and free space."""

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
    """`space` is None if the file system returned an error or did not answer in time."""

    device: str
    mount_point: str
    type: str
    read_only: bool
    space: Space | None


@dataclass(frozen=True, slots=True)
class FilesystemReading:
    filesystems: tuple[Filesystem, ...]
