"""What runs the stack: the verbs that both engines have, and which engine is used where none is named."""

import shutil
import subprocess
from collections.abc import Sequence
from typing import Protocol

from gpucommons.stack.check import Problem
from gpucommons.stack.health import ServiceHealth

_DOCKER_ANSWERS_S = 10.0


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
    def check(self) -> list[Problem]: ...
    def status(self) -> list[ServiceHealth]: ...
    def logs(self, service: str | None, lines: int, follow: bool) -> None: ...


def choose(asked: str) -> str:
    """The engine to use: the one that was asked for, else compose where Docker answers, else local."""
    if asked != "auto":
        return asked
    return "compose" if docker_answers() else "local"


def docker_answers() -> bool:
    if shutil.which("docker") is None:
        return False
    command = ["docker", "version", "--format", "{{.Server.Version}}"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_DOCKER_ANSWERS_S, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0
