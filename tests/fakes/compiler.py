"""The C compiler, for the fake libraries and programs.

A build takes two seconds, and dozens of tests need the same one. Results are kept in .pytest_cache by what they are
made from, and copied to where a test needs them: programs of other users may not enter this tree.
"""

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

FAKES = Path(__file__).resolve().parent
_KEPT = FAKES.parents[1] / ".pytest_cache" / "compiled"


def compile_c(
    made: Path, sources: Sequence[Path], options: Sequence[str] = (), *, generated: Sequence[Path] = ()
) -> Path:
    """`generated` are files that the sources include, or the linker reads, from the directory of `made`.

    An option names that directory as `{directory}`.
    Replaces an existing file as a package manager does: the old one remains where it is mapped.
    """
    kept = _KEPT / _fingerprint(sources, options, generated)
    new = made.with_name(f"{made.name}.new")
    if kept.exists():
        shutil.copy(kept, new)
    else:
        place = [f"-I{made.parent}"] if generated else []
        linked = [option.replace("{directory}", str(made.parent)) for option in options]
        command = ["cc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", *place, *linked]
        subprocess.run([*command, "-o", str(new), *map(str, sources), "-lpthread", "-lm"], check=True)
        _keep(new, kept)
    return new.rename(made)


def _fingerprint(sources: Sequence[Path], options: Sequence[str], generated: Sequence[Path]) -> str:
    """Of everything that has an effect on the result; any header may be included."""
    found = hashlib.sha256(repr(list(options)).encode())
    for path in (*sources, *sorted(FAKES.rglob("*.h")), *generated):
        found.update(path.read_bytes() + b"\0")
    return found.hexdigest()


def _keep(made: Path, kept: Path) -> None:
    """Another process may build the same at the same time. A tree that cannot be written keeps nothing."""
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=kept.parent, delete=False) as new:
            pass
        shutil.copy(made, new.name)
        Path(new.name).rename(kept)
