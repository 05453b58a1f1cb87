"""Completion in real shells, of commands, and of the pids, users and GPUs that a running agent knows."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpucommons.cli.completion import completed_command
from needs import needs_program
from running import RunningAgent, command, running_agent

BASH = """\
source "$1"
COMP_WORDS=({words} "")
COMP_CWORD={number}
_gpucommons_completion gpucommons
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
ZSH = """\
autoload -Uz compinit && compinit -u -d "$2"
compdef() {{ :; }}
source "$1"
_arguments() {{ :; }}
_TYPER_COMPLETE_ARGS="{words} " _GPUCOMMONS_COMPLETE=complete_zsh gpucommons
"""
FISH = """\
source $argv[1]
complete -C "{words} "
"""


@pytest.fixture(scope="module")
def agent() -> Iterator[RunningAgent]:
    with running_agent("--simulate", "lab") as running:
        yield running


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """`gpucommons` of this tree on the path, and nothing of this machine's agent."""
    directory = tmp_path_factory.mktemp("completion")
    program = directory / "gpucommons"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m gpucommons "$@"\n')
    program.chmod(0o755)
    return {
        "PATH": f"{directory}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "RUNTIME_DIRECTORY": str(directory),
        "STATE_DIRECTORY": str(directory),
        "GPUCOMMONS_WEB_LISTEN": "",
        "HOME": str(directory),
    }


def completed(shell: str, words: str, environment: dict[str, str]) -> list[str]:
    needs_program(shell)
    home = Path(environment["HOME"])
    script = home / f"completion.{shell}"
    script.write_text(command("completion", shell).stdout)
    text = {"bash": BASH, "zsh": ZSH, "fish": FISH}[shell].format(words=words, number=len(words.split()))
    arguments = [str(script), str(home / "zcompdump")]
    name = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    last = ["-c", text, "shell", *arguments] if shell != "fish" else ["-c", text, *arguments]
    done = subprocess.run(
        [shell, *name, *last], env=environment, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_pids_users_gpus_and_commands(shell: str, agent: RunningAgent, environment: dict[str, str]) -> None:
    who = f"gpucommons who --connect {agent.url}"
    found = "\n".join(completed(shell, f"{who} --pid", environment))
    assert "4100" in found
    assert "4153" in found
    assert "emeka" in "\n".join(completed(shell, f"{who} --user", environment))
    gpus = "\n".join(completed(shell, f"{who} --gpu", environment))
    assert all(str(index) in gpus for index in range(8))
    why = "\n".join(completed(shell, f"gpucommons why --connect {agent.url}", environment))
    assert "4259" in why
    names = "\n".join(completed(shell, "gpucommons", environment))
    assert "allocations" in names
    assert "scheduler" in names


def test_without_an_agent_there_is_no_suggestion_and_no_message(environment: dict[str, str]) -> None:
    assert "".join(completed("bash", "gpucommons who --pid", environment)) == ""


@pytest.mark.long
@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("gpucommons", ""),
        ("gpucommons ", ""),
        ("gpucommons wh", ""),
        ("gpucommons who ", "who"),
        ("gpucommons\nwho\n--pid\n", "who"),
        ("gpucommons who --pid 4", "who"),
    ],
)
def test_only_the_command_that_is_completed_is_loaded(typed: str, name: str) -> None:
    assert completed_command({"COMP_WORDS": typed}) == name
    assert completed_command({"_TYPER_COMPLETE_ARGS": typed}) == name
