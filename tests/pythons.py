"""The Python interpreters of this machine that gpucommons supports: on the PATH, and those that pyenv has installed."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

OLDEST = (3, 11)
# The newest release at the time of writing. Where it is missing, the test of it is skipped by name.
NEWEST = (3, 14)
_SHOWS = "import sys, venv; print(*sys.version_info[:2])"

Release = tuple[int, int]


def supported() -> list[Release]:
    return [(OLDEST[0], minor) for minor in range(OLDEST[1], NEWEST[1] + 1)]


def chosen_releases() -> list[Release]:
    """The newest here and the newest of all, since the other tests run with an older one; with TEST_PYTHONS=all, every
    supported one."""
    if os.environ.get("TEST_PYTHONS") == "all":
        return supported()
    newest_here = next((each for each in reversed(supported()) if interpreter(each)), OLDEST)
    return sorted({newest_here, NEWEST})


def interpreter(release: Release) -> Path | None:
    """An interpreter of this release that can make virtual environments; None where there is none."""
    if sys.version_info[:2] == release:
        return Path(sys.executable)
    return next((each for each in _candidates(release) if _release_of(each) == release), None)


def _candidates(release: Release) -> list[Path]:
    name = f"python{release[0]}.{release[1]}"
    found = shutil.which(name)
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    versions = sorted(root.glob(f"{release[0]}.{release[1]}.*"), key=_patch, reverse=True)
    return [*([Path(found)] if found else []), *(version / "bin" / name for version in versions)]


def _patch(version: Path) -> int:
    number = re.fullmatch(r"\d+\.\d+\.(\d+)", version.name)
    return int(number[1]) if number else -1


def _release_of(program: Path) -> Release | None:
    """pyenv's entry on the PATH fails for a version that is not chosen."""
    try:
        done = subprocess.run([program, "-c", _SHOWS], capture_output=True, text=True, timeout=60)
    except OSError:
        return None
    words = done.stdout.split()
    return (int(words[0]), int(words[1])) if done.returncode == 0 else None
