"""Which GPU a client's name for it means. Pure.

A client sends NVIDIA_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES as it is set, or nothing; XPUShare's library sends
`default` where neither is set. It takes its turns on one GPU: the first of the list, which is CUDA's device 0.

| name                            | GPU                                                                |
|---------------------------------|--------------------------------------------------------------------|
| none, `all`, `none`, `void`,    | the GPU with the lowest index (v1 clients never send a name)       |
| `default`                       |                                                                    |
| `0`, `1`, ...                   | the GPU with that index                                            |
| `0:1`                           | the second MIG device of the GPU with index 0                      |
| `GPU-...`, `MIG-...`            | that device; the beginning of a UUID is enough where it is unique  |
| a list of these                 | the first of the list                                              |

Names are resolved against the GPUs of the latest reading; where none matches, against GPUs that only earlier readings
had, the most recent first.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Final

from gpucommons.base.text import parse_decimal
from gpucommons.model.sharing import DEFAULT_GPU

_UNNAMED: Final = frozenset({"", "all", "none", "void", DEFAULT_GPU})


@dataclass(frozen=True, slots=True)
class KnownGpu:
    """A GPU as it was last read. `mig` holds the UUIDs of its MIG devices. GPUs that were last read together have the
    same `generation`; a later reading has a higher one."""

    uuid: str
    index: int
    mig: tuple[str, ...] = ()
    generation: int = 0


def resolve(name: str, known: Iterable[KnownGpu]) -> str | None:
    """The UUID of the GPU or MIG device; None where no known one matches."""
    first = name.split(",", 1)[0].strip()
    recent_first = sorted(known, key=lambda gpu: (-gpu.generation, gpu.index))
    for _, together in groupby(recent_first, key=attrgetter("generation")):
        uuid = _resolve_among(first, list(together))
        if uuid is not None:
            return uuid
    return None


def _resolve_among(first: str, gpus: Sequence[KnownGpu]) -> str | None:
    if first.lower() in _UNNAMED:
        return gpus[0].uuid
    gpu_part, colon, mig_part = first.partition(":")
    index = parse_decimal(gpu_part)
    if index is None:
        return _by_uuid(first.lower(), gpus)
    gpu = next((gpu for gpu in gpus if gpu.index == index), None)
    if gpu is None or not colon:
        return None if gpu is None else gpu.uuid
    number = parse_decimal(mig_part)
    return gpu.mig[number] if number is not None and number < len(gpu.mig) else None


def _by_uuid(prefix: str, gpus: Iterable[KnownGpu]) -> str | None:
    uuids = [uuid for gpu in gpus for uuid in (gpu.uuid, *gpu.mig)]
    matching = [uuid for uuid in uuids if uuid.lower().startswith(prefix)]
    exact = [uuid for uuid in matching if uuid.lower() == prefix]
    return (exact or matching)[0] if exact or len(matching) == 1 else None
