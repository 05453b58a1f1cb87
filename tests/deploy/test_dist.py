"""The wheel and the sdist are complete, and the wheel runs in a clean environment; and deploy/install.sh."""

import json
import os
import subprocess
import sys
import tarfile
import threading
import urllib.request
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from gpucommons import __version__
from needs import needs_program, needs_root
from pythons import chosen_releases, interpreter
from running import RunningAgent

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
INSTALL = ROOT / "deploy" / "install.sh"


class Dist(NamedTuple):
    sdist: Path
    wheel: Path


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Dist:
    target = tmp_path_factory.mktemp("dist")
    script = ROOT / "scripts" / "make_dist.py"
    done = subprocess.run([sys.executable, script, target], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    sdist, wheel = map(Path, done.stdout.splitlines())
    return Dist(sdist, wheel)


@pytest.fixture(scope="module", params=chosen_releases(), ids=lambda release: f"python{release[0]}.{release[1]}")
def clean(request: pytest.FixtureRequest, dist: Dist, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and what it depends on, and nothing else, for the newest Python."""
    python = interpreter(request.param)
    if python is None:
        # Not a failure in CI either: distributions have one or two of them.
        pytest.skip(f"no Python {request.param[0]}.{request.param[1]} on the PATH or in pyenv")
    place = tmp_path_factory.mktemp("clean")
    # The pip of this environment serves: one of its own takes long to install.
    checked_run([str(python), "-m", "venv", "--without-pip", str(place)])
    pip = [sys.executable, "-m", "pip", "--python", str(place / "bin" / "python"), "install", "--no-compile"]
    checked_run([*pip, str(dist.wheel)])
    return place


def outside(place: Path | None, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a command outside of the tree. With the sources on the path pip takes them for installed."""
    ours = {"STATE_DIRECTORY": str(place), "RUNTIME_DIRECTORY": str(place), "GPUCOMMONS_WEB_LISTEN": ""}
    theirs = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**theirs, **(ours if place else {}), **(more or {})}


def checked_run(arguments: list[str], place: Path | None = None, more: Mapping[str, str] | None = None) -> str:
    environment = outside(place, more)
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=200, cwd=place, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_wheel_and_sdist_have_every_file_of_the_package(dist: Dist) -> None:
    package = ROOT / "src" / "gpucommons"
    expected = {
        f"gpucommons/{path.relative_to(package)}"
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert any(name.startswith("gpucommons/faces/web/static/") for name in expected)
    assert any(name.startswith("gpucommons/stack/dashboards/") for name in expected)
    assert any(name.startswith("gpucommons/stack/rules/") for name in expected)
    assert expected - set(zipfile.ZipFile(dist.wheel).namelist()) == set()
    with tarfile.open(dist.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/{name}" for name in expected} - names == set()
    assert {"LICENSE", "CHANGELOG.md", "docs/commands.md", "deploy/install.sh"} <= names
    assert dist.wheel.name.startswith(f"gpucommons-{__version__}-py3-none-any")


def test_the_wheel_runs_in_a_clean_environment_outside_of_the_tree(clean: Path, tmp_path: Path) -> None:
    program = str(clean / "bin" / "gpucommons")
    assert checked_run([program, "--version"], tmp_path).startswith(f"gpucommons {__version__} ")
    assert "NVIDIA H200" in checked_run([program, "gpus", "--simulate", "lab"], tmp_path)
    metrics = checked_run([program, "sample", "--simulate", "lab", "--dialect", "dcgm"], tmp_path)
    assert "DCGM_FI_DEV_GPU_UTIL" in metrics
    where = checked_run(
        [str(clean / "bin" / "python"), "-c", "import gpucommons; print(gpucommons.__file__)"], tmp_path
    )
    assert where.startswith(str(clean))
    agent = RunningAgent(
        subprocess.Popen(
            [program, "up", "--simulate", "lab", "--listen", "127.0.0.1:0"],
            cwd=tmp_path,
            env=outside(tmp_path),
            stderr=subprocess.PIPE,
            text=True,
        )
    )
    threading.Thread(target=agent.follow, daemon=True).start()
    try:
        assert agent.ready.wait(30), "\n".join(agent.lines)
        assert agent.url, "\n".join(agent.lines)
        agent.wait_for_the_first_sample()
        with urllib.request.urlopen(f"{agent.url}/", timeout=10) as page:
            assert b"<script" in page.read()
        assert len(json.loads(agent.get("/api/v1/gpus")[1])["gpus"]["by_uuid"]) == 8
        assert agent.stop() == 0
    finally:
        agent.process.kill()
        agent.process.wait()


IMPORTS_ALL = """\
import importlib, pkgutil, sys, warnings
import gpucommons
extras = {"grpc", "textual"}
for kind in (DeprecationWarning, PendingDeprecationWarning, SyntaxWarning):
    warnings.filterwarnings("error", category=kind, module="gpucommons")
for module in pkgutil.walk_packages(gpucommons.__path__, "gpucommons."):
    try:
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in extras:
            raise
print(len([name for name in sys.modules if name.startswith("gpucommons.")]))
"""


def test_every_module_is_imported_without_a_warning(clean: Path, tmp_path: Path) -> None:
    """What the next release of Python removes, this one warns of. The extras are not installed."""
    assert int(checked_run([str(clean / "bin" / "python"), "-c", IMPORTS_ALL], tmp_path)) > 300


# The dependencies are those of this environment: installing them once is enough for this file. The program itself is
# what was installed.
PIP = {
    "PYTHON": sys.executable,
    "PIP_NO_DEPS": "1",
    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path.endswith("site-packages")),
}


def installed(root: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, **PIP, "DESTDIR": str(root)}
    return subprocess.run([INSTALL, *arguments], env=environment, capture_output=True, text=True, timeout=200)


def test_install_update_and_uninstall(dist: Dist, tmp_path: Path) -> None:
    root = tmp_path / "root"
    first = installed(root, "--share", "--source", str(dist.wheel))
    assert first.returncode == 0, first.stderr
    assert f"installed gpucommons {__version__} " in first.stderr
    units = root / "etc" / "systemd" / "system"
    assert sorted(path.name for path in units.glob("*.service")) == [
        "gpucommons-pauser.service",
        "gpucommons-stack.service",
        "gpucommons.service",
    ]
    assert (units / "gpucommons.service.d" / "sharing.conf").is_file()
    assert os.readlink(root / "usr/local/bin/gpucommons") == "/opt/gpucommons/bin/gpucommons"
    # Each program that a unit starts is there.
    for unit in units.glob("*.service"):
        (start,) = [line for line in unit.read_text().splitlines() if line.startswith("ExecStart=")]
        assert os.access(root / start.removeprefix("ExecStart=").split()[0].lstrip("/"), os.X_OK), start
    settings = root / "etc" / "gpucommons" / "gpucommons.toml"
    settings.write_text("[web]\nlisten = '127.0.0.1:9999'\n")
    again = installed(root, "--source", str(dist.wheel))
    assert again.returncode == 0, again.stderr
    assert "9999" in settings.read_text(), "an update keeps the configuration"
    assert (units / "gpucommons.service.d" / "sharing.conf").is_file(), "and sharing"

    gone = installed(root, "--uninstall")
    assert gone.returncode == 0, gone.stderr
    left = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() or path.is_symlink())
    assert left == ["etc/gpucommons/gpucommons.toml"]
    assert installed(root, "--uninstall", "--purge").returncode == 0
    assert not [path for path in root.rglob("*") if path.is_file() or path.is_symlink()]


# /etc, /opt and /usr/local are copies that only these commands see, and /run is empty. systemctl notes its calls.
IN_A_ROOT = """
set -e
mount -t tmpfs none /mnt
mount -t tmpfs none /run
"$INSTALL" --source "$WHEEL" 2>&1 | grep -o "systemd does not run here, nothing was changed"
[ ! -e /opt/gpucommons ] || echo "/opt/gpucommons was created"
mkdir -p /run/systemd/system
for place in etc opt usr/local; do
    mkdir -p "/mnt/$place/upper" "/mnt/$place/work"
    mount -t overlay overlay -o "lowerdir=/$place,upperdir=/mnt/$place/upper,workdir=/mnt/$place/work" "/$place"
done
sed -i /^docker:/d /etc/group
"$INSTALL" --docker --source "$WHEEL" 2>&1 | grep -o "there is no group 'docker'"
[ ! -e /opt/gpucommons ] || echo "/opt/gpucommons was created"
echo docker:x:990: >>/etc/group
"$INSTALL" --share --docker --source "$WHEEL"
cat /etc/systemd/system/gpucommons.service.d/docker.conf
echo "version: $(/usr/local/bin/gpucommons --version)"
systemd-analyze verify /etc/systemd/system/gpucommons.service /etc/systemd/system/gpucommons-pauser.service 2>&1 |
    grep gpucommons || echo verified
"$INSTALL" --source "$WHEEL"
"$INSTALL" --uninstall --purge
ls -d /opt/gpucommons /etc/gpucommons /usr/local/bin/gpucommons /etc/systemd/system/gpucommons* 2>/dev/null || echo gone
"""


def test_install_in_a_root_of_its_own(dist: Dist, tmp_path: Path) -> None:
    needs_root()
    needs_program("unshare", "systemd-analyze")
    noted = tmp_path / "systemctl.log"
    fake = tmp_path / "bin" / "systemctl"
    fake.parent.mkdir()
    fake.write_text(f'#!/bin/sh\necho "$@" >> {noted}\n')
    fake.chmod(0o755)
    environment = {
        **os.environ,
        **PIP,
        "PATH": f"{fake.parent}:{os.environ['PATH']}",
        "INSTALL": str(INSTALL),
        "WHEEL": str(dist.wheel),
    }
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "bash", "-c", IN_A_ROOT],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    refused, without_docker, *drop_in, version, verified, gone = done.stdout.splitlines()
    assert refused == "systemd does not run here, nothing was changed"
    assert without_docker == "there is no group 'docker'"
    assert drop_in == ["[Service]", "SupplementaryGroups=docker"]
    assert version.startswith(f"version: gpucommons {__version__} ")
    assert (verified, gone) == ("verified", "gone"), done.stdout + done.stderr
    first = ["daemon-reload", "enable gpucommons-pauser", "restart gpucommons-pauser"]
    first += ["enable gpucommons", "restart gpucommons"]
    services = ("gpucommons", "gpucommons-pauser", "gpucommons-stack")
    last = [*(f"disable --now {service}" for service in services), "daemon-reload"]
    assert noted.read_text().splitlines() == [*first, *first, *last]


def test_a_wrong_option_is_one_line(tmp_path: Path) -> None:
    done = installed(tmp_path, "--nonsense")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "install.sh: unknown option '--nonsense'; see: install.sh --help\n"
    assert "--uninstall" in installed(tmp_path, "--help").stdout
    purge = installed(tmp_path, "--purge")
    assert (purge.returncode, "use it with --uninstall" in purge.stderr) == (2, True), "it does not install"
    assert list(tmp_path.iterdir()) == []
    absent = tmp_path / "absent"
    assert f"no such source: {absent}" in installed(tmp_path, "--source", str(absent)).stderr
