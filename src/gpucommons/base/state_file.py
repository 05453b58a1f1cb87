"""The mode of the files that the agent keeps: they name users and their work, so that others may not read them."""

import os
from pathlib import Path

STATE_FILE_MODE = 0o640


def open_state_file(path: Path | str, flags: int) -> int:
    """A descriptor; a file that does not exist is created. The mode of an existing file is not changed."""
    return os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, STATE_FILE_MODE)
