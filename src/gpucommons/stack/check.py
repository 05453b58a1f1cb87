"""Checks before the stack starts: free ports, and a rendered configuration that promtool and amtool accept.

A problem names file and line, or the process that uses a port.
"""

import errno
import os
import re
import shlex
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpucommons.base.address import Address, parse_address

# The error of the stack that is shown to the operator.


class StackError(Exception):
    """What failed, why, and what to do, in one line per problem."""


# Checks that the ports of the stack are free, and names the process that uses one that is not.

PortOwner = Callable[[int], str | None]


def split_address(address: str) -> tuple[str, int]:
    parsed = parse_address(address)
    if not isinstance(parsed, Address):
        raise StackError(f"cannot listen on {address}: the stack listens on TCP only; use HOST:PORT")
    return parsed.host or "0.0.0.0", parsed.port


def require_free_ports(addresses: Mapping[str, str], owner: PortOwner) -> None:
    """`addresses` are HOST:PORT by service. The error names every port that is in use and its process."""
    taken = []
    for service, address in addresses.items():
        host, port = split_address(address)
        reason = _refusal(host, port)
        if reason is None:
            continue
        if reason == errno.EADDRINUSE:
            holder = owner(port) or "another process"
            taken.append(
                f"{service}: {address} is in use by {holder}; stop it, or set stack.{service}_listen to another port"
            )
        else:
            taken.append(
                f"{service}: cannot listen on {address}: {os.strerror(reason)};"
                f" set stack.{service}_listen to an address of this machine"
            )
    if taken:
        raise StackError("\n".join(taken))


def _refusal(host: str, port: int) -> int | None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.errno
    return None


# Checks a rendered configuration with promtool and amtool, and reports problems by file and line.
#
# Changes nothing: it runs before any file is replaced or any program restarted.

_TIMEOUT_S = 60.0
_LOCATED = re.compile(r"^(?P<file>\S.*?\.ya?ml): (?:(?P<line>\d+):\d+: )?(?P<message>.+)$")
_YAML_LINE = re.compile(r"\bline (?P<line>\d+): (?P<message>.+)$")
_RULE_NAME = re.compile(r'rule \d+, "(?P<name>[^"]+)"')
_FAILED = re.compile(r"^\s*FAILED:\s*")
_NO_TEAMS = "field msteamsv2_configs not found"
_TEAMS_REMEDY = (
    "Alertmanager is older than 0.28, which stack.teams_webhook_url_file needs; upgrade it, or use the compose engine"
)


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    file: str
    line: int | None
    message: str

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{where}: {self.message}"


Run = Callable[[list[str]], "subprocess.CompletedProcess[str]"]


def run_here(arguments: list[str]) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(
            arguments, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise StackError(
            f"'{arguments[0]}' did not finish within {_TIMEOUT_S:g} s; run it yourself: {shlex.join(arguments)}"
        ) from error


def check_directory(directory: Path, run: Run = run_here) -> list[ConfigProblem]:
    """Problems of `prometheus.yml` with all its rule files, and of `alertmanager.yml`."""
    problems: list[ConfigProblem] = []
    for arguments in (
        ["promtool", "check", "config", str(directory / "prometheus" / "prometheus.yml")],
        ["amtool", "check-config", str(directory / "alertmanager" / "alertmanager.yml")],
    ):
        done = run(arguments)
        if done.returncode != 0:
            output = f"{done.stderr}\n{done.stdout}"
            if _NO_TEAMS in output:
                problems.append(ConfigProblem(arguments[-1], None, _TEAMS_REMEDY))
                continue
            in_output = list(problems_in(output, _line_of_rule))
            problems += in_output or [
                ConfigProblem(arguments[-1], None, output.strip() or f"{arguments[0]} refused it without a message")
            ]
    return problems


def tools_missing() -> list[str]:
    return [name for name in ("promtool", "amtool") if shutil.which(name) is None]


def problems_in(output: str, line_of_rule: Callable[[str, str], int | None]) -> Iterator[ConfigProblem]:
    """The problems in the output of promtool and amtool. `line_of_rule` finds the line of a rule if they give none."""
    file = ""
    seen: set[tuple[str, int | None, str]] = set()
    for raw in output.splitlines():
        text = _FAILED.sub("", raw).strip()
        problem: ConfigProblem | None = None
        if located := _LOCATED.match(text.removeprefix("parsing YAML file ").removeprefix("amtool: error: ")):
            file = located["file"]
            problem = _problem(file, located["line"], located["message"], line_of_rule)
        elif file and (yaml_line := _YAML_LINE.search(text)):
            problem = ConfigProblem(file, int(yaml_line["line"]), yaml_line["message"])
        if problem is None or problem.message.endswith("unmarshal errors:"):
            continue
        key = (problem.file, problem.line, problem.message)
        if key not in seen:
            seen.add(key)
            yield problem


def _problem(
    file: str, line: str | None, message: str, line_of_rule: Callable[[str, str], int | None]
) -> ConfigProblem:
    if line is not None:
        return ConfigProblem(file, int(line), message)
    if yaml_line := _YAML_LINE.search(message):
        return ConfigProblem(file, int(yaml_line["line"]), yaml_line["message"])
    named = _RULE_NAME.search(message)
    return ConfigProblem(file, line_of_rule(file, named["name"]) if named else None, message)


def _line_of_rule(file: str, name: str) -> int | None:
    try:
        lines = Path(file).read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return None
    definition = re.compile(rf"\b(alert|record):\s*['\"]?{re.escape(name)}['\"]?\s*$")
    return next((number for number, text in enumerate(lines, 1) if definition.search(text)), None)
