"""One driver call on one GPU, prepared once: its arguments and the place of its result are allocated in advance.

What runs every second must cost little more than the call itself, so nothing is looked up or allocated then.
"""

from collections.abc import Callable

from gpucommons.sources.nvml.lanes import Lane

Handle = object
Slots = list[int | float | None]
Invoke = Callable[[], int]
# Stores the result. Returns a reason if the result cannot be right and was dropped.
Store = Callable[[], str | None]
Clear = Callable[[], None]

ABOVE_LIMIT = "above_limit"


class Call:
    """`key` is what is remembered if the GPU does not support the call; `history` are the last results of timing it."""

    __slots__ = ("clear", "history", "home", "invoke", "key", "name", "store")

    def __init__(self, name: str, key: str, home: Lane, invoke: Invoke, store: Store, clear: Clear) -> None:
        self.name = name
        self.key = key
        self.home = home
        self.invoke = invoke
        self.store = store
        self.clear = clear
        self.history = 0
