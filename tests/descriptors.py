"""The open descriptors of this process: number and target."""

import os
from contextlib import suppress


def open_descriptors() -> set[tuple[str, str]]:
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # another thread has closed it since the listing
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
    return found
