"""The node dialect: its users' names, labels and types, and nothing where nothing was read."""

from gpucommons.faces.dialects.node import NODE
from gpucommons.faces.exposition.exposition import Exposition
from gpucommons.model.gpu import Gpu, GpuIdentity, GpuProcess, GpuReading
from gpucommons.model.host import CpuReading, MemoryReading, Pressure, PressureLine, PressureReading
from gpucommons.model.process_identity import ProcessKey, ProcessRow, ProcessTable
from gpucommons.model.snapshot import Readings, Snapshot
from parsing import parsed, types_of


def page(readings: Readings) -> str:
    snapshot = Snapshot(0, 0.0, 0.0, "host", readings=readings)
    return Exposition(lambda: snapshot, [NODE]).metrics("node", False, False)[0].decode()


def full() -> Readings:
    line = Pressure(PressureLine(20, 0, 0, 0), None)
    rows = {
        7: ProcessRow(ProcessKey(7, 1), "train\n", 12.5, 4096),
        8: ProcessRow(ProcessKey(8, 2), "new", 1.0, 1),
        9: ProcessRow(ProcessKey(9, 1), "idle", 0.0, 1),
    }
    table = ProcessTable(rows, (ProcessKey(7, 1), ProcessKey(8, 1), ProcessKey(10, 1)))
    return Readings(CpuReading(8, 4, 1, 1, 0.5), MemoryReading(100, 50), PressureReading(line, line, None), table)


def test_every_name_and_value() -> None:
    found = parsed(page(full()))
    process = (("name", "train\n"), ("pid", "7"))
    score = found.pop(("node_health_score", ()))
    assert 5 < score < 6
    assert found == {
        ("cpu_load_1m", ()): 4,
        ("node_cpu_utilization_ratio", ()): 0.5,
        ("node_cpu_pressure_avg10", ()): 20,
        ("node_memory_pressure_avg10", ()): 20,
        ("node_memory_total_bytes", ()): 100,
        ("node_memory_available_bytes", ()): 50,
        ("cpu_process_cpu_seconds_total", process): 12.5,
        ("cpu_process_rss_bytes", process): 4096,
    }, "a pid of another start time is another process"


def test_every_gpu_process_is_shown_however_idle() -> None:
    process = GpuProcess(9, ProcessKey(9, 1), "compute", None)
    gone = GpuProcess(8, ProcessKey(8, 1), "compute", None)
    gpu = Gpu(GpuIdentity("GPU-1", 0, "H200", "0:0"), True, 0.0, processes=(process, gone))
    found = parsed(page(full()._replace(gpus=GpuReading("580", "13", "13.0", (gpu,), 1, 1))))
    assert ("cpu_process_rss_bytes", (("name", "idle"), ("pid", "9"))) in found
    assert not [labels for _, labels in found if ("pid", "8") in labels], "a pid of another start time"


def test_counters_are_counters() -> None:
    types = types_of(page(full()))
    assert types.pop("cpu_process_cpu_seconds") == "counter"
    assert set(types.values()) == {"gauge"}


def test_what_was_not_read_is_not_there() -> None:
    assert parsed(page(Readings())) == {}
    first = parsed(page(Readings(cpu=CpuReading(8, None, None, None, None), memory=MemoryReading(100, None))))
    assert set(first) == {("node_memory_total_bytes", ())}
