"""The lock of a ledger: two agents on one file would bill every GPU twice."""

import fcntl
import os
from pathlib import Path

from gpucommons.base.files import open_state_file
from gpucommons.ledger.errors import LedgerError, from_os


def lock_ledger(path: Path) -> int:
    """Lock the ledger for this process until the returned descriptor is closed. Raises LedgerError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = open_state_file(f"{path}.lock", os.O_RDWR)
    except OSError as error:
        raise from_os(error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise LedgerError(
            "in_use", "another agent uses it: stop that agent or set another file with [ledger] file"
        ) from None
    except OSError:
        # The file system has no locks: an unlocked ledger is better than none.
        return descriptor
    return descriptor
