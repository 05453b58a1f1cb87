"""One driver call on one GPU, made ready once: its arguments are allocated and its answer has a place.

What runs each second must cost little more than the call itself, so nothing is looked up or allocated then.
"""

from collections.abc import Callable

from gpucommons.sources.nvml.lanes import Lane

Handle = object
Slots = list[int | float | None]
Invoke = Callable[[], int]
# Takes the answer over; a reason means that the answer cannot be true and was dropped.
Store = Callable[[], str | None]
Clear = Callable[[], None]

ABOVE_LIMIT = "above_limit"


class Call:
    """`key` is what is remembered when the GPU refuses; `history` is the last verdicts on the call's cost."""

    __slots__ = ("clear", "history", "home", "invoke", "key", "name", "store")

    def __init__(self, name: str, key: str, home: Lane, invoke: Invoke, store: Store, clear: Clear) -> None:
        self.name = name
        self.key = key
        self.home = home
        self.invoke = invoke
        self.store = store
        self.clear = clear
        self.history = 0
