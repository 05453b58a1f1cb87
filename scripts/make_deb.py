"""Builds a Debian package with the agent and everything that it imports. Usage: make deb, or make_deb.py [DIRECTORY].

It holds what `deploy/install.sh` installs: a virtual environment at /opt/gpucommons, the systemd units, and an empty
configuration. So a server needs no network and no pip, only the Python release of the machine that built the package.
Needs dpkg-deb and the distribution's Python with venv (PYTHON names another one); pip loads the dependencies.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from make_dist import ROOT, make_dist

POSTINST = """#!/bin/sh
set -e
if [ "$1" = configure ] && command -v systemctl >/dev/null; then
    # An update restarts what runs and enables nothing: an administrator may have disabled it.
    if [ -z "$2" ]; then systemctl enable --quiet gpucommons || true; fi
    if [ -d /run/systemd/system ]; then
        systemctl daemon-reload
        if [ -z "$2" ]; then systemctl start gpucommons || true; fi
        systemctl try-restart gpucommons-pauser gpucommons gpucommons-stack || true
    fi
fi
"""
PRERM = """#!/bin/sh
set -e
if [ "$1" = remove ]; then
    if [ -d /run/systemd/system ]; then
        systemctl stop gpucommons gpucommons-pauser gpucommons-stack || true
        # What was paused for sharing runs again before the program that can resume it is removed.
        /opt/gpucommons/bin/gpucommons resume --all >/dev/null || true
    fi
    if command -v systemctl >/dev/null; then
        systemctl disable --quiet gpucommons gpucommons-pauser gpucommons-stack || true
    fi
fi
"""
POSTRM = """#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then systemctl daemon-reload || true; fi
# Bytecode that was written later belongs to no package.
if [ "$1" = remove ] || [ "$1" = purge ]; then rm -rf /opt/gpucommons; fi
if [ "$1" = purge ]; then rm -rf /etc/gpucommons /var/lib/gpucommons /var/lib/private/gpucommons; fi
"""
CONTROL = """Package: gpucommons
Version: {version}
Architecture: {architecture}
Maintainer: gpucommons
Depends: python3 (>= {release}), python3 (<< {next_release})
Section: admin
Priority: optional
Installed-Size: {kilobytes}
Description: node agent for shared GPUs
 Attributes the use of each GPU to owners, lets programs share GPUs fairly, keeps accounts, and serves metrics.
"""


def output_of(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def stage(tree: Path, wheel: Path, python: str) -> None:
    """The files of the package below `tree`, as install.sh installs them, at the places of a distribution's package."""
    environment = {**os.environ, "DESTDIR": str(tree), "PYTHON": python}
    subprocess.run([ROOT / "deploy" / "install.sh", "--source", wheel], check=True, env=environment)
    program = tree / "opt" / "gpucommons"
    for file in [*(program / "bin").iterdir(), program / "pyvenv.cfg"]:
        if file.is_file() and not file.is_symlink() and str(tree).encode() in (found := file.read_bytes()):
            file.write_bytes(found.replace(str(tree).encode(), b""))
    for record in program.rglob("direct_url.json"):
        # The path of the wheel on the machine that built the package.
        record.unlink()
    for cache in program.rglob("__pycache__"):
        shutil.rmtree(cache)
    subprocess.run(
        [program / "bin" / "python", "-m", "compileall", "-q", "-s", tree, "-p", "/", program / "lib"], check=True
    )
    (tree / "usr" / "lib" / "systemd").mkdir(parents=True)
    (tree / "etc" / "systemd" / "system").rename(tree / "usr" / "lib" / "systemd" / "system")
    (tree / "etc" / "systemd").rmdir()
    shutil.rmtree(tree / "usr" / "local")
    (tree / "usr" / "bin").mkdir()
    (tree / "usr" / "bin" / "gpucommons").symlink_to("/opt/gpucommons/bin/gpucommons")


def describe(tree: Path, version: str, python: str) -> str:
    """Writes DEBIAN/. Returns the architecture."""
    major, minor = map(int, output_of(python, "-c", "import sys; print(*sys.version_info[:2])").split())
    architecture = output_of("dpkg", "--print-architecture")
    size = sum(file.lstat().st_size for file in tree.rglob("*") if file.is_file() and not file.is_symlink())
    control = CONTROL.format(
        version=version,
        architecture=architecture,
        release=f"{major}.{minor}",
        next_release=f"{major}.{minor + 1}",
        kilobytes=size // 1024,
    )
    folder = tree / "DEBIAN"
    folder.mkdir()
    (folder / "control").write_text(control)
    (folder / "conffiles").write_text("/etc/gpucommons/gpucommons.toml\n")
    for name, script in (("postinst", POSTINST), ("prerm", PRERM), ("postrm", POSTRM)):
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
    return architecture


def main() -> None:
    if shutil.which("dpkg-deb") is None:
        sys.exit("cannot build the package: dpkg-deb is missing; it is part of Debian and Ubuntu")
    # Not that of the user who builds it: the files would be writable or unreadable for others where it is installed.
    os.umask(0o022)
    target = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "dist").absolute()
    python = os.environ.get("PYTHON", "/usr/bin/python3")
    with TemporaryDirectory() as directory:
        tree = Path(directory, "tree")
        tree.mkdir(mode=0o755)
        _, wheel = make_dist(target)
        stage(tree, wheel, python)
        version = wheel.name.split("-")[1]
        architecture = describe(tree, version, python)
        package = target / f"gpucommons_{version}_{architecture}.deb"
        subprocess.run(["dpkg-deb", "--root-owner-group", "--build", tree, package], check=True, stdout=sys.stderr)
    print(package)


if __name__ == "__main__":
    main()
