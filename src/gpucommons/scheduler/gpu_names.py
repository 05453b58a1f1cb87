"""Which GPU a client means by what it calls it. Pure.

A client passes on NVIDIA_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES as it found it, or nothing at all. It takes
its turns on one GPU: the first that it names, which is the one that CUDA calls device 0 for it.

| it says                       | it gets                                                            |
|-------------------------------|--------------------------------------------------------------------|
| nothing, `all`, `none`, `void`| the GPU with the lowest index (v1 clients never say anything)      |
| `0`, `1`, ...                 | the GPU of that index                                              |
| `GPU-...`                     | that GPU; the beginning of a UUID is enough where it is unique     |
| a list of these               | the first of the list                                              |
| anything else                 | a queue of its own under that name, as long as there are not many  |

Without NVML no GPU is known: names are then taken as they are, and the unnamed one is called `default`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

DEFAULT_GPU: Final = "default"
_UNNAMED: Final = frozenset({"", "all", "none", "void"})


@dataclass(frozen=True, slots=True)
class KnownGpu:
    uuid: str
    index: int


def resolve(name: str, known: Iterable[KnownGpu]) -> str:
    """The UUID of the GPU that is meant; a name that fits none is returned as it is."""
    first = name.split(",", 1)[0].strip()
    gpus = sorted(known, key=lambda gpu: gpu.index)
    if first.lower() in _UNNAMED:
        return gpus[0].uuid if gpus else DEFAULT_GPU
    if first.isascii() and first.isdigit():
        index = int(first[:9])
        return next((gpu.uuid for gpu in gpus if gpu.index == index), first)
    wanted = first.lower()
    matching = [gpu.uuid for gpu in gpus if gpu.uuid.lower().startswith(wanted)]
    exact = [uuid for uuid in matching if uuid.lower() == wanted]
    if exact or len(matching) == 1:
        return (exact or matching)[0]
    return first
