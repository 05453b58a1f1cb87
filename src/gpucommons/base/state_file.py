"""The mode of the files that the agent keeps: they name users and their work, so that others may not read them."""

import os
from pathlib import Path

STATE_FILE_MODE = 0o640


def refused(path: Path) -> str | None:
    """Why this process may not read the file, in one line; None if it may or if there is no such file.

    The file is not opened: to close a database again would end SQLite's locks in this process.
    """
    try:
        os.stat(path)
        is_allowed = os.access(path, os.R_OK, effective_ids=os.access in os.supports_effective_ids)
    except PermissionError:
        is_allowed = False
    except OSError:
        return None
    return None if is_allowed else f"{path}: no permission to read it; use sudo or join the group of the file"


def open_state_file(path: Path | str, flags: int) -> int:
    """A descriptor; a file that does not exist is created. The mode of an existing file is not changed."""
    return os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, STATE_FILE_MODE)


def replace_state_file(path: Path, content: bytes, mode: int = STATE_FILE_MODE, durably: bool = False) -> None:
    """Readers find the old content or the new one. `durably` also survives a power failure. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        if durably:
            os.fsync(descriptor)
    os.replace(draft, path)
