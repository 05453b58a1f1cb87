"""`gpucommons completion`: the script with which a shell completes commands, options and their values.

The shell runs `gpucommons` with a variable that asks for completions; typer answers. `suggestions.py` has the values.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Final

import typer

from gpucommons.base.text import printable_lines
from gpucommons.cli.output import show

PROGRAM: Final = "gpucommons"
COMPLETE_VARIABLE: Final = "_GPUCOMMONS_COMPLETE"
# What has been typed: of bash, and of zsh and fish.
_TYPED: Final = ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, typer.Argument(help="The shell that reads the script.")]) -> None:
    """Print the completion script of a shell.

    bash: source <(gpucommons completion bash). zsh: the same with zsh, after compinit.
    fish: gpucommons completion fish | source.
    """
    from typer._completion_shared import get_completion_script

    script = get_completion_script(prog_name=PROGRAM, complete_var=COMPLETE_VARIABLE, shell=shell.value)
    show(printable_lines(script.split("\n")))


def completed_command(environment: Mapping[str, str]) -> str:
    """The command whose arguments are completed; empty while the command itself is. Only its module is loaded then."""
    typed = next((environment[name] for name in _TYPED if name in environment), "")
    words = typed.split()
    is_complete = len(words) > 2 or typed.endswith((" ", "\n"))
    return words[1] if len(words) > 1 and is_complete else ""
