"""The stack as configured. Its configuration is generated, checked, and only then put in place."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpucommons.config.stack import StackSettings
from gpucommons.stack.check import ConfigProblem, PortOwner, Run, StackError, check_directory
from gpucommons.stack.compose_file import ComposeHost
from gpucommons.stack.health import AgentCredentials, get, judge
from gpucommons.stack.prometheus import Layout
from gpucommons.stack.render import read_secret, render, write

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Stack:
    """`say` prints a line for the operator; `port_owner` names the process that uses a port."""

    settings: StackSettings
    layout: Layout
    node: str
    say: Say
    port_owner: PortOwner

    def addresses(self, with_grafana: bool) -> dict[str, str]:
        addresses = {
            "prometheus": self.settings.prometheus_listen,
            "alertmanager": self.settings.alertmanager_listen,
        }
        if with_grafana:
            addresses["grafana"] = self.settings.grafana_listen
        return addresses

    def health_urls(self, with_grafana: bool) -> dict[str, str]:
        paths = {"prometheus": "/-/ready", "alertmanager": "/-/ready", "grafana": "/api/health"}
        urls = {name: f"http://{address}{paths[name]}" for name, address in self.addresses(with_grafana).items()}
        scheme = "https" if self.settings.agents_ca_file else "http"
        return {"agent": f"{scheme}://{self.settings.agent}/readyz", **urls}

    def credentials(self) -> AgentCredentials:
        settings = self.settings
        password = read_secret(settings.agents_password_file, "agents_password_file")
        return AgentCredentials(settings.agents_ca_file, settings.agents_username, password or "")

    def urls(self, with_grafana: bool) -> dict[str, str]:
        return {name: f"http://{address}/" for name, address in self.addresses(with_grafana).items()}

    def say_where(self, with_grafana: bool) -> None:
        for name, url in self.urls(with_grafana).items():
            self.say(f"{name}: {url}")
        agent = judge("agent", get(self.health_urls(with_grafana)["agent"], credentials=self.credentials()))
        if not agent.ok:
            self.say(f"the agent on {self.settings.agent} {agent.detail}; start it with: gpucommons up")

    def files(self, with_grafana: bool) -> dict[str, str]:
        return render(self.settings, self.layout, self.node, with_grafana, _host())


_NOBODY = 65534


def container_ids() -> tuple[int, int]:
    """Containers run as the user who starts the stack and owns the data; as nobody if that user is root."""
    uid, gid = os.getuid(), os.getgid()
    return (_NOBODY, _NOBODY) if uid == 0 else (uid, gid)


def _host() -> ComposeHost:
    uid, gid = container_ids()
    return ComposeHost(f"{uid}:{gid}", Path("/dev/nvidiactl").exists())


def check(stack: Stack, with_grafana: bool, run: Run) -> list[ConfigProblem]:
    """Checks the configuration in a temporary directory. Changes nothing that is in use."""
    with _temporary_directory(stack.layout) as directory:
        write(stack.files(with_grafana), directory)
        return [_in_place(problem, directory, stack.layout.config) for problem in check_directory(directory, run)]


def prepare(stack: Stack, with_grafana: bool, run: Run) -> None:
    """Replaces the configuration if the new one is valid; otherwise raises and keeps the old one."""
    problems = check(stack, with_grafana, run)
    if problems:
        raise StackError("\n".join(str(problem) for problem in problems))
    layout = stack.layout
    for directory in (layout.targets, layout.secrets, layout.logs, layout.run):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    write(stack.files(with_grafana), layout.config)


@contextmanager
def _temporary_directory(layout: Layout) -> Iterator[Path]:
    layout.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".check-", dir=layout.root) as directory:
        yield Path(directory)


def _in_place(problem: ConfigProblem, directory: Path, config: Path) -> ConfigProblem:
    """With the path of the real file instead of the checked copy."""
    return ConfigProblem(
        problem.file.replace(str(directory), str(config)),
        problem.line,
        problem.message.replace(str(directory), str(config)),
    )
