"""The files of an agent, for commands that find no running agent."""

import os
from pathlib import Path

from gpucommons.cli.reader import Reader
from gpucommons.cli.run import CommandError


def readable_file(reader: Reader, own: Path, of_node: Path, what: str) -> Path:
    """The file of this user's agent, else that of the node's agent. Raises CommandError."""
    for path in (own, of_node):
        if os.access(path, os.R_OK):
            return path
    if not reader.asks or os.getuid() == 0:
        raise CommandError(f"{own}: no {what}; 'gpucommons up' writes it")
    raise CommandError(
        f"{reader.why}, and without it user {os.getuid()} can read no {what} ({own} and {of_node} do not exist or are "
        "not readable); start the agent's service, or ask the administrator to"
    )
