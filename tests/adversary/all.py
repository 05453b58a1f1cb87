"""Every attack, with the number of its rounds in the tests."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from adversary import on_disk, on_sockets
from adversary.budget import Budget
from adversary.victim import Victim


class SocketAttack(NamedTuple):
    run: Callable[[Victim, Budget], Counter[str]]
    rounds: int


class DiskAttack(NamedTuple):
    run: Callable[[Path, Budget], Counter[str]]
    rounds: int


ON_SOCKETS = (
    SocketAttack(on_sockets.mutated_frames, 400),
    SocketAttack(on_sockets.random_requests, 300),
    SocketAttack(on_sockets.slow_readers, 150),
    SocketAttack(on_sockets.connection_floods, 14),
    SocketAttack(on_sockets.password_guessers, 3),
    SocketAttack(on_sockets.control_loops, 150),
    SocketAttack(on_sockets.hostile_names, 2),
)
ON_DISK = (
    DiskAttack(on_disk.kills_of_the_writer, 1),
    DiskAttack(on_disk.kills_of_the_agent, 1),
    DiskAttack(on_disk.full_disks, 100),
    DiskAttack(on_disk.clock_jumps, 500),
    DiskAttack(on_disk.damaged_ledgers, 15),
)
