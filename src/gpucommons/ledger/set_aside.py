"""Renames a damaged ledger to a dated name. Nothing is ever overwritten or deleted."""

import os
import time
from pathlib import Path

from gpucommons.base.files import STATE_FILE_MODE
from gpucommons.ledger.errors import LedgerError

_COMPANIONS = ("", "-wal", "-shm")


def set_aside(path: Path, wall_s: float) -> Path:
    """Returns the new name. The write-ahead log is renamed too: it may contain data that can be recovered."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(wall_s))
    target = path.with_name(f"{path.name}.corrupt-{stamp}")
    number = 1
    while any(os.path.lexists(f"{target}{suffix}") for suffix in _COMPANIONS):
        number += 1
        target = path.with_name(f"{path.name}.corrupt-{stamp}-{number}")
    try:
        for suffix in reversed(_COMPANIONS):
            if os.path.lexists(f"{path}{suffix}"):
                os.rename(f"{path}{suffix}", f"{target}{suffix}")
                # A file of an earlier release may be readable by all.
                os.chmod(f"{target}{suffix}", os.stat(f"{target}{suffix}").st_mode & STATE_FILE_MODE)
    except OSError as error:
        raise LedgerError("cannot_open", f"a damaged file cannot be renamed: {error.strerror}") from error
    return target
