"""The files of an agent, for commands that find no running agent."""

import os
from pathlib import Path

from gpucommons.base.state_file import refused
from gpucommons.cli.command_line import CommandError
from gpucommons.cli.reader import Reader


def readable_file(reader: Reader, own: Path, of_node: Path, what: str) -> Path:
    """The file of this user's agent, else that of the node's agent. Raises CommandError."""
    for path in (own, of_node):
        if refused(path) is None and path.exists():
            return path
    if reason := refused(own):
        raise CommandError(reason)
    if not reader.asks or os.getuid() == 0:
        raise CommandError(f"{own}: no {what}; 'gpucommons up' writes it")
    raise CommandError(
        f"{reader.why}, and without it user {os.getuid()} can read no {what} ({own} and {of_node} do not exist or are "
        "not readable); start the agent's service, or ask the administrator to"
    )
