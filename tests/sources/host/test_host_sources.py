"""CPU, memory and pressure from a /proc made by the test, and from the real one."""

import itertools
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucommons.model.host import MemoryReading, PressureLine
from gpucommons.sources.host.cpu import (
    CpuReader,
    parse_cpu_line,
    parse_meminfo,
    parse_pressure,
    read_memory,
    read_pressure,
    utilization,
)
from gpucommons.sources.host.portable import PortableCpuReader, read_portable_memory
from gpucommons.sources.source import SourceAbsent, SourceError

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's /proc")


def proc(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return root


def test_utilisation_takes_two_reads(tmp_path: Path) -> None:
    proc(tmp_path, stat="cpu 100 0 100 700 100 0 0 0 0 0\ncpu0 1\ncpu1 1\nintr 5\n", loadavg="1.5 2 3 1/9 4\n")
    source = CpuReader(tmp_path)
    first = source.read()
    assert (first.cores, first.load_1m, first.load_5m, first.load_15m) == (2, 1.5, 2.0, 3.0)
    assert first.utilization_ratio is None, "one read is not enough"
    proc(tmp_path, stat="cpu 130 0 120 740 110 0 0 0 50 0\ncpu0 1\ncpu1 1\n")
    assert source.read().utilization_ratio == pytest.approx(0.5)
    # Read again within one tick: no time has passed, so the last value is kept.
    assert source.read().utilization_ratio == pytest.approx(0.5)


def test_load_that_cannot_be_read_is_missing(tmp_path: Path) -> None:
    proc(tmp_path, stat="cpu 1 1 1 1 1\n")
    assert CpuReader(tmp_path).read().load_1m is None


@given(st.lists(st.tuples(*[st.integers(0, 10**9)] * 8), min_size=2, max_size=5))
def test_utilisation_is_a_ratio_whatever_the_counters_do(rows: list[tuple[int, ...]]) -> None:
    reads = [parse_cpu_line(b"cpu " + " ".join(map(str, row)).encode()) for row in rows]
    for before, after in itertools.pairwise(reads):
        ratio = utilization(before, after)
        assert ratio is None or 0 <= ratio <= 1


def test_memory(tmp_path: Path) -> None:
    proc(tmp_path, meminfo="MemTotal:  1000 kB\nMemAvailable:  400 kB\nHugePages_Free:   3\n")
    sizes = {"MemTotal": 1024000, "MemAvailable": 409600}
    assert read_memory(tmp_path) == MemoryReading(1024000, 409600, sizes, {"HugePages_Free": 3})
    assert parse_meminfo(b"MemTotal: 1 kB\n").available_bytes is None, "not 0 and not MemFree"


def test_pressure(tmp_path: Path) -> None:
    proc(tmp_path, pressure__cpu="some avg10=1.50 avg60=0.2 avg300=0.3 total=2000000\nnew avg10=x\n\n")
    reading = read_pressure(tmp_path)
    assert reading.cpu is not None
    assert reading.cpu.some == PressureLine(1.5, 0.2, 0.3, 2.0)
    assert reading.cpu.full is None
    assert reading.memory is None


def test_no_pressure_at_all_is_absent(tmp_path: Path) -> None:
    with pytest.raises(SourceAbsent, match="no pressure") as caught:
        read_pressure(tmp_path)
    assert "psi=1" in caught.value.remedy


@pytest.mark.parametrize("read", [lambda root: CpuReader(root).read(), read_memory], ids=["cpu", "memory"])
def test_a_missing_proc_is_absent_with_a_remedy(read: Callable[[Path], object], tmp_path: Path) -> None:
    with pytest.raises(SourceAbsent) as caught:
        read(tmp_path)
    assert "--path.procfs" in caught.value.remedy


@pytest.mark.parametrize("text", ["", "cpu\n", "cpu a b c d\n", "\x00\xff", "MemTotal: many\n", "MemTotal:\n"])
def test_garbage_is_a_counted_failure(text: str, tmp_path: Path) -> None:
    proc(tmp_path, stat=text, meminfo=text)
    for read in (CpuReader(tmp_path).read, partial(read_memory, tmp_path)):
        with pytest.raises(SourceError) as caught:
            read()
        assert caught.value.reason == "garbage"


def test_a_directory_in_its_place_is_unreadable(tmp_path: Path) -> None:
    (tmp_path / "meminfo").mkdir()
    with pytest.raises(SourceError) as caught:
        read_memory(tmp_path)
    assert caught.value.reason == "unreadable"


@given(st.binary(max_size=300))
def test_pressure_never_raises(text: bytes) -> None:
    parse_pressure(text)


@linux
def test_the_real_proc() -> None:
    cpu = CpuReader(Path("/proc")).read()
    assert cpu.cores >= 1
    assert cpu.load_1m is not None
    memory = read_memory(Path("/proc"))
    assert memory.available_bytes is not None
    assert 0 < memory.available_bytes <= memory.total_bytes


@linux
def test_psutil_and_proc_agree() -> None:
    portable, ours = read_portable_memory(), read_memory(Path("/proc"))
    assert portable.total_bytes == ours.total_bytes
    assert PortableCpuReader().read().cores == CpuReader(Path("/proc")).read().cores
    assert PortableCpuReader().read().utilization_ratio is None
