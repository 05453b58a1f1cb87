"""Modules are loaded without the garbage collector.

As they are loaded, it would examine all their objects again and again. Nearly all of them stay until the process ends:
the collector finds little, and takes a quarter of the CPU time of the agent's start. It does not examine them later
either; a process that runs for long unfreezes them once (`agent/memory.py`).
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loading() -> Iterator[None]:
    """Around imports. It changes the whole process: for a command, before it works."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
