"""What DS01 keeps on disk: the state file of older installs, and the disk it lies on."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ds01Entry:
    """One allocation by the state file. `gpu_id` is a slot, "1" or "1.0"; `stopped` that its container is."""

    container: str
    user: str
    gpu_id: str
    allocated_wall_s: float | None = None
    stopped: bool = False


@dataclass(frozen=True, slots=True)
class Ds01Reading:
    """`entries` is None where there is no state file, which is so on newer installs."""

    entries: tuple[Ds01Entry, ...] | None
    disk_total_bytes: int | None = None
    disk_free_bytes: int | None = None
    disk_used_bytes: int | None = None
