"""Words of the model that need none of its values.

The commands that read import them from here: the values take longer to define than such a command may take.
"""

from enum import StrEnum
from typing import Final


class By(StrEnum):
    """What the rows of the accounts are. A day begins at midnight UTC, as in the ledger."""

    USER = "user"
    GROUP = "group"
    NAMESPACE = "namespace"
    POD = "pod"
    JOB = "job"
    DAY = "day"
    GPU = "gpu"


class SharingClass(StrEnum):
    """What a program may wait for. batch: it takes turns like any other. latency: it is never paused, and others are
    held back while it works. background: it runs only while no program of another class uses the GPU."""

    BATCH = "batch"
    LATENCY = "latency"
    BACKGROUND = "background"


# The one queue of all clients whose GPU is not known (yet).
DEFAULT_GPU: Final = "default"
# What nvshare's library sends where it runs in no pod.
NO_POD: Final = frozenset({"", "none"})
