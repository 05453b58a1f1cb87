"""The verbs that both engines of the stack have, and the choice of the engine."""

import shutil
import subprocess
from collections.abc import Sequence
from typing import Protocol

from gpucommons.stack.check import ConfigProblem
from gpucommons.stack.health import ServiceHealth

_DOCKER_TIMEOUT_S = 10.0


class StackEngine(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def services(self) -> Sequence[str]: ...

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def reload(self) -> None: ...
    def update(self) -> None: ...
    def build(self) -> None: ...
    def check(self) -> list[ConfigProblem]: ...
    def status(self) -> list[ServiceHealth]: ...
    def logs(self, service: str | None, lines: int, follow: bool) -> None: ...


def choose(setting: str) -> str:
    """The engine that is set; for auto, compose if Docker answers, else local."""
    if setting != "auto":
        return setting
    return "compose" if docker_answers() else "local"


def docker_answers() -> bool:
    if shutil.which("docker") is None:
        return False
    command = ["docker", "version", "--format", "{{.Server.Version}}"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_DOCKER_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0
