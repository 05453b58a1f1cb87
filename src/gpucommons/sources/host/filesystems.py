"""The mounted file systems: the mount table without the excluded ones, and the space of each."""

import re
from pathlib import Path, PurePosixPath

from gpucommons.model.host import Filesystem, FilesystemReading
from gpucommons.sources.host.mounts import Mount, parse_mounts, read_mounts
from gpucommons.sources.host.statfs import SpaceReader
from gpucommons.sources.source import SourceAbsent, SourceError

# Short enough that a command that takes one sample still gets the others if one file system hangs.
_IN_TURN_S, _ANSWER_WITHIN_S = 0.5, 1.0


class FilesystemReader:
    """Mounts whose mount point or type matches an `exclude` pattern are left out; an empty pattern excludes none."""

    def __init__(self, procfs: Path, rootfs: Path, mount_points_exclude: str, types_exclude: str) -> None:
        self._procfs = procfs
        self._rootfs = rootfs
        self._mount_points_exclude = re.compile(mount_points_exclude or "(?!)")
        self._types_exclude = re.compile(types_exclude or "(?!)")
        self._space = SpaceReader(_IN_TURN_S, _ANSWER_WITHIN_S)

    def read(self) -> FilesystemReading:
        mounts = [mount for mount in self._mounts() if not self._is_excluded(mount)]
        places = {mount: str(self._rootfs / mount.path.lstrip("/")) for mount in mounts}
        spaces = self._space.read(places.values())
        return FilesystemReading(
            tuple(
                Filesystem(mount.device, mount.mount_point, mount.type, mount.read_only, spaces[place])
                for mount, place in places.items()
            )
        )

    def _mounts(self) -> list[Mount]:
        try:
            return list(parse_mounts(read_mounts(self._procfs), PurePosixPath(self._rootfs)))
        except FileNotFoundError:
            raise SourceAbsent(
                f"no mount table: {self._procfs / 'mounts'} does not exist",
                "mount the host's /proc and set --path.procfs to it",
            ) from None
        except OSError as error:
            raise SourceError("unreadable", f"mount table of {self._procfs}: {error.strerror}") from error
        except ValueError as error:
            raise SourceError("garbage", f"mount table of {self._procfs}: a line has too few fields") from error

    def _is_excluded(self, mount: Mount) -> bool:
        return bool(self._mount_points_exclude.search(mount.mount_point) or self._types_exclude.search(mount.type))
