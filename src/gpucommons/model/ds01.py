"""What DS01, a management system for shared GPU servers, keeps on disk: the state file of older installations, and the
disk that holds it."""

from typing import NamedTuple


class Ds01Entry(NamedTuple):
    """One allocation in the state file. `gpu_id` is a slot, "1" or "1.0"; `stopped` is the state of its container."""

    container: str
    user: str
    gpu_id: str
    allocated_wall_s: float | None = None
    stopped: bool = False


class Ds01Reading(NamedTuple):
    """`entries` is None if there is no state file; newer installations have none."""

    entries: tuple[Ds01Entry, ...] | None
    disk_total_bytes: int | None = None
    disk_free_bytes: int | None = None
    disk_used_bytes: int | None = None
