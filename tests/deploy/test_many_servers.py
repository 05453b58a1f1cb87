"""docs/recipes/fifty-servers.md, followed to the letter: wheels without a network, by hand and with Ansible.

The server is a booted systemd without a network. Its root is this machine's, so that it has the same Python.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.booted_systemd import BootedSystemd, booted_systemd
from deploy.test_live_systemd import PYTHON, active, answers, needs_the_python_of_the_system
from gpucommons import __version__
from test_recipes import RECIPES, ROOT, blocks
from waiting import until

# pip and Ansible start hundreds of short programs: minutes where others use the machine, too.
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

PAGE = RECIPES / "fifty-servers.md"
ARCHIVE = "gpucommons-offline.tar.gz"
CONFIG = '[web]\nlisten = "127.0.0.1:9460"\n[sampling]\ninterval_s = 2\n'


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the machine that has a network, after the first block of the page."""
    needs_the_python_of_the_system()
    folder = tmp_path_factory.mktemp("built")
    make_dist, *lines = blocks(PAGE)[0].splitlines()
    assert make_dist.startswith("make dist ")
    script = ROOT / "scripts" / "make_dist.py"
    subprocess.run([sys.executable, script, folder / "dist"], check=True, capture_output=True, timeout=120)
    (folder / ".venv").symlink_to(sys.prefix)
    shutil.copytree(ROOT / "deploy", folder / "deploy")
    done = subprocess.run(
        ["bash", "-ec", "\n".join(lines)], cwd=folder, capture_output=True, text=True, timeout=300, env=_plain(folder)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def _plain(home: Path) -> dict[str, str]:
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(home), "LANG": "C.UTF-8"}


@pytest.fixture
def server(built: Path, tmp_path: Path) -> Iterator[BootedSystemd]:
    """A server that has the archive in /srv/copied, and nothing else of the tree."""
    copied = tmp_path / "copied"
    copied.mkdir()
    shutil.copy(built / ARCHIVE, copied)
    with booted_systemd(tmp_path, {copied: "/srv/copied", built: "/srv/controller"}, "HOME=/nowhere") as booted:
        yield booted


def test_wheels_are_installed_without_a_network(server: BootedSystemd) -> None:
    server.output("bash", "-ec", f"cd /srv/copied\n{blocks(PAGE)[1]}")
    assert f"gpucommons {__version__} " in server.output("/usr/local/bin/gpucommons", "--version")
    until(lambda: answers(server), "the agent answers", within_s=60)
    assert active(server)[0] == "active"
    top = server.output("/opt/gpucommons/bin/python", "-c", "import gpucommons.cli.top_app as app; print(app.__file__)")
    assert top.startswith("/opt/gpucommons/"), "with what the terminal view needs"


def test_the_playbook_installs_and_changes_nothing_when_it_runs_again(server: BootedSystemd, built: Path) -> None:
    ansible = built / "ansible"
    subprocess.run([PYTHON, "-m", "venv", ansible], check=True, capture_output=True, timeout=300)
    pip = [str(ansible / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", "ansible-core"]
    subprocess.run(pip, check=True, capture_output=True, timeout=300)
    (built / "playbook.yml").write_text(blocks(PAGE, "yaml")[0])
    (built / "inventory").write_text(
        f"[gpu_servers]\nlocalhost ansible_connection=local ansible_python_interpreter={PYTHON}\n"
    )
    (built / "gpucommons.toml").write_text(CONFIG)

    def play() -> dict[str, int]:
        printed = server.output(
            *("bash", "-ec", "cd /srv/controller && ansible/bin/python -m ansible playbook -i inventory playbook.yml"),
            environment={"HOME": "/root", "ANSIBLE_NOCOLOR": "1"},
        )
        return {name: int(number) for name, number in re.findall(r"(\w+)=(\d+)", printed.rpartition("RECAP")[2])}

    first = play()
    assert (first["failed"], first["unreachable"], first["changed"]) == (0, 0, 4), "three tasks and the handler"
    until(lambda: answers(server), "the agent answers", within_s=60)
    assert server.output("cat", "/etc/gpucommons/gpucommons.toml") == CONFIG.strip()
    assert play()["changed"] == 0
