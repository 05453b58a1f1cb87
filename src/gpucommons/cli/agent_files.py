"""The files of an agent, for commands that find no running agent."""

import os
from pathlib import Path

from gpucommons.base.files import refused
from gpucommons.cli.command_line import CommandError
from gpucommons.cli.reader import Reader


def readable_file(reader: Reader, own: Path, of_node: Path, what: str) -> Path:
    """The file of this user's agent, else that of the node's agent. Raises CommandError."""
    problems = []
    for path in dict.fromkeys((own, of_node)):
        reason = refused(path)
        if reason is None and path.exists():
            return path
        problems.append(reason or f"{path} does not exist")
    if not reader.asks or os.geteuid() == 0:
        raise CommandError(f"{own}: no {what}; 'gpucommons up' writes it")
    raise CommandError(
        f"{reader.why}, and without one no {what} can be read: {'; '.join(problems)}; "
        "start the agent's service, or ask the administrator to"
    )
