"""Pressure stall information (PSI) of CPU, memory and I/O from /proc/pressure."""

from pathlib import Path

from gpucommons.model.host import Pressure, PressureLine, PressureReading
from gpucommons.sources.host.procfs import read_file
from gpucommons.sources.source import SourceAbsent


def parse_pressure(text: bytes) -> Pressure:
    """Unknown lines are left out: a newer kernel may add some."""
    lines: dict[bytes, PressureLine] = {}
    for line in text.splitlines():
        kind, *pairs = line.split() or [b""]
        values = dict(pair.split(b"=", 1) for pair in pairs if b"=" in pair)
        try:
            lines[kind] = PressureLine(
                float(values[b"avg10"]),
                float(values[b"avg60"]),
                float(values[b"avg300"]),
                int(values[b"total"]) / 1e6,
            )
        except (KeyError, ValueError):
            continue
    return Pressure(lines.get(b"some"), lines.get(b"full"))


def read_pressure(procfs: Path) -> PressureReading:
    cpu, memory, io = (_read(procfs, name) for name in ("cpu", "memory", "io"))
    if cpu is None and memory is None and io is None:
        raise SourceAbsent(
            f"no pressure stall information under {procfs / 'pressure'}",
            "needs Linux 4.20 or newer with PSI; on some distributions boot with psi=1",
        )
    return PressureReading(cpu, memory, io)


def _read(procfs: Path, name: str) -> Pressure | None:
    try:
        # Reading fails with EOPNOTSUPP if PSI is compiled in but disabled.
        return parse_pressure(read_file(procfs, f"pressure/{name}"))
    except OSError:
        return None
