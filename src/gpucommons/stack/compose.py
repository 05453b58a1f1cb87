"""The stack in Docker: writes and checks the configuration, and runs docker compose."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from gpucommons.stack import stack as common
from gpucommons.stack.check import ConfigProblem, Run, StackError, require_free_ports, run_here, tools_missing
from gpucommons.stack.compose_file import AGENT_IMAGE, ALERTMANAGER_IMAGE, PROJECT, PROMETHEUS_IMAGE
from gpucommons.stack.health import ServiceHealth, probe
from gpucommons.stack.render import ensure_password
from gpucommons.stack.stack import Stack, container_ids

_INSTALL_DOCKER = "sudo apt install docker.io"
_START_DOCKER = "sudo systemctl start docker"
_INSTALL_COMPOSE = "sudo apt install docker-compose   (or docker-compose-plugin from Docker's own repository)"
_STDOUT, _STDERR = 1, 2
_DOCKER_TIMEOUT_S = 10.0


def choose_engine(setting: str) -> str:
    """The engine that is set; for auto, compose if Docker answers, else local."""
    if setting != "auto":
        return setting
    return "compose" if _docker_answers() else "local"


def _docker_answers() -> bool:
    if shutil.which("docker") is None:
        return False
    command = ["docker", "version", "--format", "{{.Server.Version}}"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_DOCKER_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


class ComposeEngine:
    name = "compose"

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._layout = stack.layout
        self.data_dir = stack.layout.root
        self.urls = stack.urls(with_grafana=True)

    @property
    def services(self) -> Sequence[str]:
        own = ("prometheus", "alertmanager", "grafana")
        return (*own, "agent") if self._stack.settings.run_agent else own

    def start(self) -> None:
        compose = self._compose()
        common.prepare(self._stack, with_grafana=True, run=self._checker())
        made = ensure_password(self._layout.grafana_password, os.environ.get("GRAFANA_ADMIN_PASSWORD"))
        self._hand_over()
        if not self._running():
            require_free_ports(self._stack.addresses(with_grafana=True), self._stack.port_owner)
        self._call([*compose, "up", "--detach", "--remove-orphans"])
        self._stack.say_where(with_grafana=True)
        if made is not None:
            user = self._stack.settings.grafana_admin_user
            self._stack.say(f"Grafana's administrator is '{user}' with the password: {made}")
            self._stack.say(f"It is shown only once; it is kept in {self._layout.grafana_password}")

    def stop(self) -> None:
        if not self._layout.compose_file.exists():
            self._stack.say("nothing is running")
            return
        self._call([*self._compose(), "down"])
        self._stack.say(f"stopped; the data stays in {self._layout.root}")

    def reload(self) -> None:
        compose = self._compose()
        common.prepare(self._stack, with_grafana=True, run=self._checker())
        self._hand_over()
        self._call([*compose, "kill", "-s", "SIGHUP", "prometheus", "alertmanager"])

    def update(self) -> None:
        compose = self._compose()
        common.prepare(self._stack, with_grafana=True, run=self._checker())
        self._call([*compose, "pull", "prometheus", "alertmanager", "grafana"])
        self.start()

    def build(self) -> None:
        source = Path(__file__).resolve().parents[3]
        dockerfile = source / "deploy" / "Dockerfile"
        if not dockerfile.exists():
            raise StackError(f"cannot build the agent's image: no {dockerfile}; run this command from a source tree")
        _require_docker()
        self._call(["docker", "build", "--tag", AGENT_IMAGE, "--file", str(dockerfile), str(source)])

    def check(self) -> list[ConfigProblem]:
        return common.check(self._stack, with_grafana=True, run=self._checker())

    def status(self) -> list[ServiceHealth]:
        stack = self._stack
        return probe(stack.health_urls(with_grafana=True), stack.settings.prometheus_listen, stack.credentials())

    def logs(self, service: str | None, lines: int, follow: bool) -> None:
        arguments = [*self._compose(), "logs", "--tail", str(lines)]
        self._call([*arguments, *(["--follow"] if follow else []), *([service] if service else [])], to=_STDOUT)

    def _compose(self) -> list[str]:
        _require_docker()
        if not _docker_answers():
            raise StackError(f"Docker does not answer; start it with: {_START_DOCKER}; or use --engine local")
        plugin = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
        if plugin.returncode == 0:
            command = ["docker", "compose"]
        elif shutil.which("docker-compose"):
            command = ["docker-compose"]
        else:
            raise StackError(f"docker compose is not installed; install it with: {_INSTALL_COMPOSE}")
        return [*command, "--project-name", PROJECT, "--file", str(self._layout.compose_file)]

    def _checker(self) -> Run:
        """The tools of this machine if installed, else those in the images."""
        if not tools_missing():
            return run_here
        _require_docker()
        images = {"promtool": PROMETHEUS_IMAGE, "amtool": ALERTMANAGER_IMAGE}
        seen = [path for path in (str(self._layout.root), self._stack.settings.rules_dir) if path]

        def run_in_image(arguments: list[str]) -> "subprocess.CompletedProcess[str]":
            program, *rest = arguments
            mounts = [part for path in seen for part in ("--volume", f"{path}:{path}:ro")]
            command = ["docker", "run", "--rm", "--network", "none", "--user", "0", *mounts]
            return run_here([*command, "--entrypoint", program, images[program], *rest])

        return run_in_image

    def _running(self) -> bool:
        done = subprocess.run([*self._compose(), "ps", "--quiet"], capture_output=True, text=True, check=False)
        return bool(done.stdout.strip())

    def _hand_over(self) -> None:
        """Gives the files of the containers to the user that the containers run as."""
        for name in ("prometheus", "alertmanager", "grafana"):
            self._layout.data(name).mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.getuid() != 0:
            return
        uid, gid = container_ids()
        for top in (self._layout.config, self._layout.secrets, self._layout.targets):
            for path in (top, *top.rglob("*")):
                os.chown(path, uid, gid)
        for name in ("prometheus", "alertmanager", "grafana"):
            os.chown(self._layout.data(name), uid, gid)

    def _call(self, arguments: list[str], to: int = _STDERR) -> None:
        """What Docker prints is progress, except for logs."""
        done = subprocess.run(arguments, check=False, stdout=to)
        if done.returncode != 0:
            raise StackError(
                f"'{' '.join(arguments[:2])} ...' failed with status {done.returncode}; see its output above"
            )


def _require_docker() -> None:
    if shutil.which("docker") is None:
        raise StackError(f"docker is not installed; install it with: {_INSTALL_DOCKER}; or use --engine local")
