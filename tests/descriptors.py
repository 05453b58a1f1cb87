"""Which files below a folder this process has open. Never counts what other threads open elsewhere."""

import os
from contextlib import suppress
from pathlib import Path


def open_below(folder: Path) -> list[str]:
    targets = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # another thread has closed it since the listing
            targets.append(os.readlink(f"/proc/self/fd/{number}"))
    return [target for target in targets if Path(target).is_relative_to(folder)]
