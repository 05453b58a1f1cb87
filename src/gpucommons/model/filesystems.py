"""The mounted file systems at an instant: size and free space."""

from typing import NamedTuple


class Space(NamedTuple):
    size_bytes: int
    free_bytes: int
    available_bytes: int
    files: int
    files_free: int


class Filesystem(NamedTuple):
    """`space` is None if the file system returned an error or did not answer in time."""

    device: str
    mount_point: str
    type: str
    read_only: bool
    space: Space | None


class FilesystemReading(NamedTuple):
    filesystems: tuple[Filesystem, ...]
