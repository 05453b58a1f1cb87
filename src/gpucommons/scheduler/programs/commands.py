"""The short name of a command, as people know it: `train.py` for `python3 -u /home/alice/train.py --epochs 3`. Pure."""

import re
from collections.abc import Sequence
from typing import Final

_INTERPRETER: Final = re.compile(r"(?:python|pypy|ruby|perl|julia)[0-9.]*")
# Options of an interpreter that are followed by a value, and those whose value is the program.
_WITH_VALUE: Final = frozenset({"-W", "-X", "-I", "-C", "--project", "--check-hash-based-pycs"})
_INLINE: Final = frozenset({"-c", "-e"})


def short_command(command_line: Sequence[str], process_name: str) -> str:
    """An interpreter's script or module, else the program's file name; without a command line, the process's name.

    A program that writes its own title (`nginx: worker process`) has one argument with spaces: its first word counts.
    """
    if len(command_line) == 1:
        command_line = [word.rstrip(":") for word in command_line[0].split()]
    program = _basename(command_line[0]) if command_line else ""
    if not program:
        return process_name
    if not _INTERPRETER.fullmatch(program):
        return program
    return _script(program, command_line[1:]) or program


def _script(interpreter: str, arguments: Sequence[str]) -> str:
    remaining = iter(arguments)
    for argument in remaining:
        if argument == "-m":
            return next(remaining, "")
        if argument in _INLINE:
            return f"{interpreter} {argument}"
        if argument in _WITH_VALUE:
            next(remaining, None)
        elif not argument.startswith("-"):
            return _basename(argument)
    return ""


def _basename(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
