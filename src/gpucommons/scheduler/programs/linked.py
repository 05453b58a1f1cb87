"""Which GPUs are one queue: a program on several GPUs runs on all of them at once or not at all. Pure."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gpucommons.scheduler.programs.jobs import Program


class LinkedGpus(NamedTuple):
    """Devices that form one queue, in order, and the keys of the programs on them. `id` is the first device."""

    id: str
    devices: tuple[str, ...]
    programs: tuple[str, ...]


def linked_gpus(programs: Iterable[Program], devices: Iterable[str] = ()) -> tuple[LinkedGpus, ...]:
    """All queues, by id. Each of `devices` that no program is on is a queue of its own.

    The result depends on the sets of programs and devices only, not on their order.
    """
    parents: dict[str, str] = {device: device for device in devices}
    of_program = {program.key: program.devices for program in programs}
    for connected in of_program.values():
        for device in connected:
            parents.setdefault(device, device)
            # The root is the lowest name in the queue, which is the queue's id.
            low, high = sorted((_root(parents, connected[0]), _root(parents, device)))
            parents[high] = low
    queues: dict[str, tuple[list[str], list[str]]] = {}
    for device in sorted(parents):
        queues.setdefault(_root(parents, device), ([], []))[0].append(device)
    for key, connected in sorted(of_program.items()):
        queues[_root(parents, connected[0])][1].append(key)
    return tuple(LinkedGpus(id, tuple(found), tuple(keys)) for id, (found, keys) in queues.items())


def _root(parents: Mapping[str, str], device: str) -> str:
    while parents[device] != device:
        device = parents[device]
    return device
