"""Asks promtool and amtool whether a rendered configuration is good, and tells by file and line what is not.

Changes nothing: it runs before anything is replaced or restarted.
"""

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

_TIMEOUT_S = 60.0
_LOCATED = re.compile(r"^(?P<file>\S.*?\.ya?ml): (?:(?P<line>\d+):\d+: )?(?P<message>.+)$")
_YAML_LINE = re.compile(r"\bline (?P<line>\d+): (?P<message>.+)$")
_RULE_NAME = re.compile(r'rule \d+, "(?P<name>[^"]+)"')
_FAILED = re.compile(r"^\s*FAILED:\s*")


@dataclass(frozen=True, slots=True)
class Problem:
    file: str
    line: int | None
    message: str

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{where}: {self.message}"


Run = Callable[[list[str]], "subprocess.CompletedProcess[str]"]


def run_here(arguments: list[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(arguments, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False)


def check_directory(directory: Path, run: Run = run_here) -> list[Problem]:
    """Problems of `prometheus.yml` with all its rule files, and of `alertmanager.yml`."""
    problems: list[Problem] = []
    for arguments in (
        ["promtool", "check", "config", str(directory / "prometheus" / "prometheus.yml")],
        ["amtool", "check-config", str(directory / "alertmanager" / "alertmanager.yml")],
    ):
        done = run(arguments)
        if done.returncode != 0:
            output = f"{done.stderr}\n{done.stdout}"
            found = list(problems_in(output, _line_of_rule))
            problems += found or [Problem(arguments[-1], None, output.strip() or f"{arguments[0]} refuses it")]
    return problems


def tools_missing() -> list[str]:
    return [name for name in ("promtool", "amtool") if shutil.which(name) is None]


def problems_in(output: str, line_of_rule: Callable[[str, str], int | None]) -> Iterator[Problem]:
    """What promtool and amtool said, one problem each. `line_of_rule` finds a rule they give no line for."""
    file = ""
    seen: set[tuple[str, int | None, str]] = set()
    for raw in output.splitlines():
        text = _FAILED.sub("", raw).strip()
        problem: Problem | None = None
        if located := _LOCATED.match(text.removeprefix("parsing YAML file ").removeprefix("amtool: error: ")):
            file = located["file"]
            problem = _problem(file, located["line"], located["message"], line_of_rule)
        elif file and (yaml_line := _YAML_LINE.search(text)):
            problem = Problem(file, int(yaml_line["line"]), yaml_line["message"])
        if problem is None or problem.message.endswith("unmarshal errors:"):
            continue
        key = (problem.file, problem.line, problem.message)
        if key not in seen:
            seen.add(key)
            yield problem


def _problem(file: str, line: str | None, message: str, line_of_rule: Callable[[str, str], int | None]) -> Problem:
    if line is not None:
        return Problem(file, int(line), message)
    if yaml_line := _YAML_LINE.search(message):
        return Problem(file, int(yaml_line["line"]), yaml_line["message"])
    named = _RULE_NAME.search(message)
    return Problem(file, line_of_rule(file, named["name"]) if named else None, message)


def _line_of_rule(file: str, name: str) -> int | None:
    try:
        lines = Path(file).read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return None
    wanted = re.compile(rf"\b(alert|record):\s*['\"]?{re.escape(name)}['\"]?\s*$")
    return next((number for number, text in enumerate(lines, 1) if wanted.search(text)), None)
