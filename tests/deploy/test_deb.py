"""The Debian package: installed, updated, removed and purged by dpkg, in a root that lies over that of the machine."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpucommons import __version__
from needs import needs_program, needs_root

# The build takes a minute of processor time.
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
# What is written there is in memory; the mounts go with the shell.
OVERLAY = """
set -eu
mount -t tmpfs deb "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay deb -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
mount --rbind /proc "$1/root/proc"
mount --rbind /dev "$1/root/dev"
cp "$2" "$1/root/package.deb"
echo ready
exec chroot "$1/root" sh
"""
# The dependencies are those of this environment.
PACKAGES = os.pathsep.join(path for path in sys.path if path.endswith("site-packages"))


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs_program("dpkg-deb")
    if sys.version_info[:2] != (3, 11) or not Path("/usr/bin/python3.11").exists():
        pytest.skip("the dependencies of this environment are for another Python than the distribution's")
    script = ROOT / "scripts" / "make_deb.py"
    environment = {**os.environ, "PIP_NO_DEPS": "1", "PYTHONPATH": PACKAGES, "PYTHON": "/usr/bin/python3.11"}
    made = [sys.executable, str(script), str(tmp_path_factory.mktemp("deb"))]
    # Whatever files the user who builds it would make writable for all.
    done = subprocess.run(made, capture_output=True, text=True, timeout=500, env=environment, umask=0)
    assert done.returncode == 0, done.stdout + done.stderr
    return Path(done.stdout.splitlines()[-1])


class Shell:
    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def run(self, command: str) -> tuple[int, str]:
        """Exit status and output of a command in the root."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"( {command} ) </dev/null 2>&1; printf '\\nstatus=%s\\n' $?\n")
        self._process.stdin.flush()
        lines: list[str] = []
        for line in self._process.stdout:
            if line.startswith("status="):
                return int(line.removeprefix("status=")), "".join(lines)
            lines.append(line)
        raise AssertionError("the shell ended: " + "".join(lines))


@pytest.fixture
def shell(package: Path, tmp_path: Path) -> Iterator[Shell]:
    needs_root()
    needs_program("unshare", "dpkg")
    process = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", OVERLAY, "sh", tmp_path, package],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": PACKAGES},
    )
    try:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            pytest.skip("no overlay of file systems can be mounted here")
        yield Shell(process)
    finally:
        process.communicate(timeout=30)


def test_its_files_are_roots_and_only_root_can_change_them(package: Path) -> None:
    """Also where the user who builds it has another umask: root runs what is in it."""
    listed = subprocess.run(["dpkg-deb", "--contents", package], check=True, capture_output=True, text=True).stdout
    rows = [line.split(maxsplit=5) for line in listed.splitlines()]
    assert any(row[5] == "./opt/gpucommons/bin/gpucommons" for row in rows)
    for mode, owner, *_, name in rows:
        assert owner == "root/root", name
        assert mode[0] == "l" or (mode[5], mode[8]) == ("-", "-"), f"{mode} {name}"
        assert mode[7] == "r", f"users run it: {mode} {name}"
        assert "s" not in mode[1:].lower(), f"{mode} {name}"


def test_dpkg_installs_updates_removes_and_purges_it(shell: Shell) -> None:
    status, text = shell.run("dpkg --install /package.deb")
    assert status == 0, text
    assert shell.run("dpkg --verify gpucommons")[1].strip() == "", "every file is as it was packed"
    assert f"gpucommons {__version__} " in shell.run("cd / && gpucommons --version")[1]
    assert "alice" in shell.run("cd / && gpucommons gpus --simulate lab")[1], "it runs from where it was installed"
    assert (
        shell.run("grep --recursive --files-with-matches /tree/ /opt/gpucommons/bin /opt/gpucommons/pyvenv.cfg")[0] == 1
    )
    assert shell.run("systemctl is-enabled gpucommons")[0] == 0

    shell.run("echo '[web]' > /etc/gpucommons/gpucommons.toml")
    assert shell.run("dpkg --install /package.deb")[0] == 0
    assert "[web]" in shell.run("cat /etc/gpucommons/gpucommons.toml")[1], "an update keeps the configuration"

    assert shell.run("dpkg --remove gpucommons")[0] == 0
    assert shell.run("test -e /opt/gpucommons")[0] == 1
    assert "[web]" in shell.run("cat /etc/gpucommons/gpucommons.toml")[1], "a removal too"
    assert shell.run("dpkg --purge gpucommons")[0] == 0
    assert shell.run("test -e /etc/gpucommons")[0] == 1
