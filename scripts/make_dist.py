"""Builds the sdist, and the wheel from the unpacked sdist: what the sdist lacks, the wheel lacks too. Usage: make dist.

Works on a copy of the tree, so that no build file appears in it. Needs setuptools in this Python.
"""

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md", "src", "docs", "deploy")
IGNORED = shutil.ignore_patterns("__pycache__", "*.egg-info")


def build(kind: str, tree: Path, target: Path) -> Path:
    """`kind` is sdist or wheel. Returns the file."""
    script = f"import sys; from setuptools import build_meta; print(build_meta.build_{kind}(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", script, str(target)], cwd=tree, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"cannot build the {kind}: {done.stderr.strip().splitlines()[-1]}\n{done.stdout}{done.stderr}")
    return target / done.stdout.splitlines()[-1]


def make_dist(target: Path) -> tuple[Path, Path]:
    """The sdist and the wheel."""
    target.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as directory:
        tree, unpacked = Path(directory, "tree"), Path(directory, "unpacked")
        tree.mkdir()
        for part in PARTS:
            if (ROOT / part).is_dir():
                shutil.copytree(ROOT / part, tree / part, ignore=IGNORED)
            else:
                shutil.copy(ROOT / part, tree / part)
        sdist = build("sdist", tree, target)
        with tarfile.open(sdist) as archive:
            archive.extractall(unpacked, filter="data")
        (inside,) = unpacked.iterdir()
        wheel = build("wheel", inside, target)
    return sdist, wheel


def main() -> None:
    target = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "dist").absolute()
    for file in make_dist(target):
        print(file)


if __name__ == "__main__":
    main()
