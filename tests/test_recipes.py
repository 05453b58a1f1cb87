"""docs/recipes and the README, followed to the letter: the settings and commands are those that stand on the page.

A shell runs each command in a folder of its own. What differs from a server: /etc/gpucommons is a folder of the test,
`sudo` starts the command as it is, `systemctl` and the container runtimes only note how they were called, and the
driver and the control program of MPS are fakes.
"""

import csv
import os
import pwd
import re
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from fakes.nvml.build import build
from leases.test_mps import MpsNode
from needs import needs_program
from open_folder import open_folder
from prometheus_server import free_port
from receivers import hook
from running import running_agent
from testbeds.podman import running_podman
from waiting import until

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[1]
RECIPES = ROOT / "docs" / "recipes"
NOTING = ("docker", "podman", "systemctl")


def blocks(page: Path, language: str = "", heading: str = "") -> list[str]:
    """The blocks of this language on the page, or below one heading of it."""
    text = page.read_text()
    if heading:
        text = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found = re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [block for name, block in found if name == language]


class Shell:
    """`environment` is that of the agent, so that commands find it."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.etc = folder / "etc"
        self.notes = folder / "notes"
        programs = folder / "programs"
        for made in (self.etc, programs):
            made.mkdir()
        self._write(programs / "gpucommons", f'exec {shlex.quote(sys.executable)} -m gpucommons "$@"')
        self._write(programs / "python", f'exec {shlex.quote(sys.executable)} "$@"')
        self._write(programs / "sudo", 'exec "$@"')
        for name in NOTING:
            self._write(programs / name, f'printf "%s\\n" {name} "$@" >>{self.notes}')
        (folder / "train.py").write_text("import os\nprint('GPU', os.environ['CUDA_VISIBLE_DEVICES'])\n")
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            **environment,
            "PATH": f"{programs}:{environment.get('PATH', os.environ['PATH'])}",
            "TMPDIR": str(folder),
        }

    def _write(self, program: Path, line: str) -> None:
        program.write_text(f"#!/bin/sh\n{line}\n")
        program.chmod(0o755)

    def here(self, text: str) -> str:
        return text.replace("/etc/gpucommons", str(self.etc))

    def configure(self, text: str) -> Path:
        file = self.etc / "gpucommons.toml"
        file.write_text(self.here(text))
        return file

    def type(self, line: str, given: str = "", status: int = 0) -> str:
        """One line of a page. What it prints, on both outputs."""
        done = subprocess.run(
            ["bash", "-c", self.here(line)],
            cwd=self.folder,
            env=self.environment,
            input=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )
        assert done.returncode == status, f"{line}: {done.returncode}\n{done.stdout}"
        return done.stdout

    def start(self, line: str) -> "subprocess.Popen[str]":
        """One line that runs until its standard input is closed."""
        return subprocess.Popen(
            ["bash", "-c", f"exec {line}"],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def noted(self) -> list[str]:
        return self.notes.read_text().splitlines()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs_program("cc")
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def node(library: Path) -> Iterator[MpsNode]:
    """One free GPU."""
    with open_folder() as directory:
        node = MpsNode(directory, library)
        yield node
        node.close()


def test_the_readme_gets_a_free_gpu(node: MpsNode, tmp_path: Path) -> None:
    (block,) = blocks(ROOT / "README.md", heading="Get a free GPU")
    shell = Shell(tmp_path, node.environment)
    with node.serving("off"):
        lines = block.splitlines()
        assert len(lines) == 6
        for line in lines:
            # Nothing waits here, and no Prometheus is configured: the commands say so.
            status = 1 if line.startswith("gpucommons why") else 2 if "--fleet" in line else 0
            printed = shell.type(line, status=status)
            if "train.py" in line:
                assert re.search(r"^GPU GPU-", printed, re.MULTILINE), line
        assert "fleet.prometheus_url" in printed


def test_five_students_share_one_gpu_and_the_sixth_waits(node: MpsNode, tmp_path: Path) -> None:
    page = RECIPES / "five-students.md"
    (settings,), (line,) = blocks(page, "toml"), blocks(page)
    shell = Shell(tmp_path, node.environment)
    (tmp_path / "homework.py").write_text(
        "import os, sys\n"
        "print(os.environ['CUDA_MPS_PINNED_DEVICE_MEM_LIMIT'], os.environ['CUDA_VISIBLE_DEVICES'], flush=True)\n"
        "sys.stdin.read()\n"
    )
    with node.serving("per_user", settings):
        students = [shell.start(line.strip()) for _ in range(5)]
        started = [student.stdout.readline().split() for student in students if student.stdout]
        assert [limit for limit, _ in started] == ["0=14306M"] * 5, "15 GB, in MiB"
        assert len({uuid for _, uuid in started}) == 1
        sixth = shell.start(line.strip())
        until(lambda: node.queue()["waiting"], "the sixth waits in line")
        assert "GPU 0" in shell.type("gpucommons why")
        assert len(node.queue()["leases"]) == 5
        students[0].communicate(timeout=60)
        assert sixth.stdout is not None
        assert sixth.stdout.readline().split() == started[0], "it gets the place of the first"
        for each in (*students[1:], sixth):
            each.communicate(timeout=60)
            assert each.returncode == 0


def test_groups_are_billed(tmp_path: Path) -> None:
    page = RECIPES / "billing-groups.md"
    (settings,), (commands,) = blocks(page, "toml"), blocks(page)
    with open_folder() as directory:
        environment = {"RUNTIME_DIRECTORY": str(directory), "STATE_DIRECTORY": str(directory)}
        shell = Shell(tmp_path, environment)
        config = shell.configure(settings)
        with running_agent("--simulate", "lab", "--config", str(config), environment=environment) as agent:
            month = subprocess.run(["date", "+%Y-%m"], capture_output=True, text=True, check=True).stdout.strip()
            named = re.findall(r"--month (\d{4}-\d{2})", commands)
            assert named, "the page names a month"
            by_group, as_csv, by_user = commands.replace(named[0], month).splitlines()
            until(lambda: '"cost"' in agent.get("/api/v1/report?since=1d&by=user")[1], "accounts", within_s=120)
            printed = shell.type(by_group)
            assert re.search(r"cost.*EUR|EUR", printed, re.IGNORECASE), printed
            shell.type(as_csv)
            rows = list(csv.DictReader((tmp_path / "november.csv").open()))
            assert rows
            assert {"group", "held_gpu_hours", "cost"} <= rows[0].keys()
            assert "alice" in shell.type(by_user)


def test_the_webhook_is_tried_and_then_used(tmp_path: Path) -> None:
    page = RECIPES / "slack.md"
    (settings,), (commands,) = blocks(page, "toml"), blocks(page)
    shell = Shell(tmp_path, {})
    shell.configure(settings)
    with hook() as (received, url):
        paste, check, restart = commands.splitlines()
        shell.type(paste, given=f"{url}\n")
        file = shell.etc / "webhook-url"
        assert (file.read_text(), file.stat().st_mode & 0o777) == (f"{url}\n", 0o600)
        assert "webhook: delivered" in shell.type(check)
        assert len(received.texts) == 1
        received.statuses.append(404)
        assert "status 404" in shell.type(check, status=1), "what the service answered"
    shell.type(restart)
    assert shell.noted() == ["systemctl", "restart", "gpucommons"]


def test_a_container_gets_the_gpu_of_its_lease(node: MpsNode, tmp_path: Path) -> None:
    (block,) = blocks(RECIPES / "containers.md")
    with_docker, with_podman = block.splitlines()
    shell = Shell(tmp_path, node.environment)
    with node.serving("off"):
        (uuid,) = re.findall(r'uuid="(GPU-[^"]+)"', node.agent.get("/metrics/gpucommons")[1])[:1]
        shell.type(with_docker)
        # Docker needs the quotes: without them a comma ends the value.
        assert shell.noted() == [
            "docker",
            "run",
            "--rm",
            "--gpus",
            f'"device={uuid}"',
            "my-image",
            "python",
            "train.py",
        ]
        shell.notes.unlink()
        shell.type(with_podman)
        assert shell.noted()[:5] == ["podman", "run", "--rm", "--device", "nvidia.com/gpu=all"]
        assert shell.noted()[5:] == ["--env", "CUDA_VISIBLE_DEVICES", "my-image", "python", "train.py"]


def test_run_in_a_container_gets_a_gpu_and_gives_it_back_when_the_container_ends(node: MpsNode) -> None:
    """With a real Podman, whose container has the root of this machine and the socket that the page names."""
    (option,) = re.findall(r"`--volume (/run/gpucommons):/run/gpucommons`", (RECIPES / "containers.md").read_text())
    inside = ("--network=none", "--user=1000", "--cap-add=DAC_READ_SEARCH", "--rootfs", "/:O")
    path = os.pathsep.join(filter(None, sys.path))
    gpucommons = (f"--env=PYTHONPATH={path}", *inside, sys.executable, "-m", "gpucommons")
    with node.serving("off"), running_podman() as podman:
        (uuid,) = re.findall(r'uuid="(GPU-[^"]+)"', node.agent.get("/metrics/gpucommons")[1])[:1]
        volumes = (
            f"--volume={node.environment['RUNTIME_DIRECTORY']}:{option}",
            f"--volume={node.environment['GPUCOMMONS_LEASES_SOCKET']}:{option}/leases.sock",
        )
        command = ("run", "sh", "-c", "echo GPU $CUDA_VISIBLE_DEVICES; exec sleep 600")
        id = podman.podman("run", "--detach", *volumes, *gpucommons, *command)
        (lease,) = until(lambda: node.queue()["leases"].values(), "the command in the container has a GPU")
        assert lease["user"] == user_name(1000)
        until(lambda: f"GPU {uuid}" in podman.podman("logs", id), "the command knows its GPU")
        shown = podman.podman("run", "--rm", *volumes, *gpucommons, "gpus")
        assert uuid in shown
        assert "hidden" in shown, "a container sees no names"
        podman.podman("kill", id)
        until(lambda: not node.queue()["leases"], "the GPU is free again")


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def test_two_exporters_are_replaced(tmp_path: Path) -> None:
    (settings,) = blocks(RECIPES / "replace-a-program.md", "toml")
    ports = {port: free_port() for port in re.findall(r":(\d+)", settings)}
    assert len(ports) == 2
    for port, free in ports.items():
        settings = settings.replace(f":{port}", f"127.0.0.1:{free}")
    shell = Shell(tmp_path, {})
    with running_agent("--simulate", "lab", "--config", str(shell.configure(settings))) as agent:
        until(lambda: agent.get("/readyz")[0] == 200, "all sources were read")
        for port, name in (("9400", "DCGM_FI_DEV_GPU_UTIL{"), ("9100", "node_memory_MemTotal_bytes ")):
            with urllib.request.urlopen(f"http://127.0.0.1:{ports[port]}/metrics", timeout=10) as answer:
                assert name in answer.read().decode(), port


def test_what_the_readme_types_after_make_demo_is_installed_by_it() -> None:
    """`make demo` installs what `gpucommons top` needs: the README names `top` right after it."""
    first = (ROOT / "README.md").read_text().partition("\n## ")[0]
    assert "`top`" in first
    ready = (ROOT / "Makefile").read_text().partition("$(VENV)/.ready:")[2].partition("\n\n")[0]
    assert "--editable '.[tui]'" in ready
