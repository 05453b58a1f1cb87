"""DS01's state directory: the allocation file of older installations, and the disk that holds it."""

import os
from pathlib import Path

from gpucommons.model.workloads import Ds01Entry, Ds01Reading
from gpucommons.sources.source import SourceAbsent, SourceError, mapping, parse, text, wall_s

_MAX_BYTES = 16 << 20


def parse_state(data: bytes, whose: str) -> tuple[Ds01Entry, ...]:
    """Bad entries are left out."""
    allocations = mapping(mapping(parse(data, whose)).get("allocations"))
    entries = []
    for container, value in allocations.items():
        fields = mapping(value)
        gpu_id = fields.get("gpu_id")
        slot = str(gpu_id) if isinstance(gpu_id, int) and not isinstance(gpu_id, bool) else text(gpu_id).strip()
        if not slot or not container:
            continue
        entries.append(
            Ds01Entry(
                text(container),
                text(fields.get("user")),
                slot,
                wall_s(fields.get("allocated_at")),
                bool(fields.get("stopped_at")),
            )
        )
    return tuple(entries)


class Ds01StateReader:
    def __init__(self, state_file: Path) -> None:
        self._state_file = state_file
        self._parsed: tuple[bytes, tuple[Ds01Entry, ...]] | None = None

    def read(self) -> Ds01Reading:
        directory = self._state_file.parent
        try:
            disk = os.statvfs(directory)
        except OSError as error:
            raise SourceAbsent(
                f"no DS01 here: {directory}: {error.strerror}",
                "on a DS01 node, set [ds01] state_file to its state file",
            ) from error
        return Ds01Reading(
            self._entries(),
            disk.f_blocks * disk.f_frsize,
            disk.f_bfree * disk.f_frsize,
            (disk.f_blocks - disk.f_bfree) * disk.f_frsize,
        )

    def _entries(self) -> tuple[Ds01Entry, ...] | None:
        """The same object while the file is unchanged: others cache what they derive from it."""
        try:
            with self._state_file.open("rb") as file:
                data = file.read(_MAX_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SourceError("unreadable", f"{self._state_file}: {error.strerror}") from error
        if self._parsed is None or self._parsed[0] != data:
            self._parsed = (data, parse_state(data, str(self._state_file)))
        return self._parsed[1]
