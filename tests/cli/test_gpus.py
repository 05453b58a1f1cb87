"""`gpucommons gpus`: the table and the JSON, over a fake driver, a scenario and no driver at all."""

import io
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from fakes.nvml.build import build
from fakes.nvml.control import FakeNvml, process
from gpucommons.cli.gpus_view import as_values, nothing, render
from gpucommons.model.gpu import GpuReading
from gpucommons.model.snapshot import Readings, Snapshot
from gpucommons.model.source_state import SourceState
from gpucommons.simulation.faults import FaultyGpus
from gpucommons.simulation.lab_gpus import LabGpus
from needs import needs_program
from running import command

START = 1_700_000_000.0


def snapshot_of(reading: GpuReading) -> Snapshot:
    return Snapshot(1, 0.0, START + 30, "host", readings=Readings(gpus=reading))


def table_of(reading: GpuReading) -> list[str]:
    out = io.StringIO()
    render(snapshot_of(reading), reading, out)
    return out.getvalue().splitlines()


def test_over_a_driver(tmp_path: Path) -> None:
    needs_program("cc")
    fake = FakeNvml(tmp_path / "driver", build(tmp_path / "lib"))
    fake.say("gpus 2", "recording busy", process(0, 10, 2**30), process(0, 11, 2**30))
    shown = command("gpus", environment=fake.environment()).stdout.splitlines()
    assert shown[0].split() == ["GPU", "NAME", "UUID", "MEMORY", "UTIL", "TEMP", "POWER", "PROCESSES", "HEALTH"]
    first = shown[1]
    for words in ("GPU-3ea3f955-c0e4-1497-8afd-c9836cb19860", "1.3 / 140.4 GiB", "100%", "63 C", "695 / 700 W", "ok"):
        assert words in first
    assert shown[-1] == "2 GPUs, driver 580.159.04, CUDA 13.0"
    values = json.loads(command("gpus", "--json", environment=fake.environment()).stdout)
    assert [gpu["utilization_percent"] for gpu in values["gpus"]] == [100, 100]
    assert [row["pid"] for row in values["gpus"][0]["processes"]] == [10, 11]


def test_without_a_driver_it_says_why_in_one_line() -> None:
    state = SourceState("nvml", absent=True, detail="no NVIDIA driver", remedy="install it")
    bare = Snapshot(1, 0.0, START, "host", sources={"nvml": state})
    assert nothing(bare) == "no GPU readings: no NVIDIA driver; install it"
    assert as_values(bare) == {"gpus": [], "note": "no GPU readings: no NVIDIA driver; install it"}


def test_the_lab_with_its_instances() -> None:
    shown = table_of(LabGpus(START).at(30.0))
    assert len(shown) == 1 + 8 + 11 + 1
    instance = next(line for line in shown if "MIG 3g.71gb" in line)
    assert instance.split()[0] == "6.0"
    assert "/ 69.5 GiB" in instance
    split = next(line for line in shown if line.startswith("6 "))
    assert " - " in split, "a split GPU's utilisation is not known, and not 0"


def test_a_bad_day() -> None:
    shown = table_of(FaultyGpus(LabGpus(START)).at(30.0))
    lost = next(line for line in shown if line.startswith("3 "))
    assert "lost, gpu_is_lost" in lost
    assert lost.count(" - ") == 5
    hot = next(line for line in shown if line.startswith("1 "))
    assert "hot" in hot
    assert "91 C" in hot
    assert shown[-1].startswith("7 GPUs of 8, ")


def test_a_hostile_name_is_a_name() -> None:
    reading = LabGpus(START).at(1.0)
    name = "[red]\x1b[2Jx[/red]"
    gpu = replace(reading.gpus[0], identity=replace(reading.gpus[0].identity, name=name))
    shown = "\n".join(table_of(replace(reading, gpus=(gpu,))))
    assert "[red]\\x1b[2Jx[/red]" in shown
    assert "\x1b" not in shown


def test_json_has_what_is_unknown_as_null() -> None:
    values = as_values(snapshot_of(FaultyGpus(LabGpus(START)).at(30.0)))
    text = json.loads(json.dumps(values))
    assert (text["expected"], text["present"]) == (8, 7)
    lost = text["gpus"][-1]
    assert (lost["up"], lost["health"], lost["power_watts"], lost["processes"]) == (False, "lost", None, None)
    assert [one["profile"] for one in text["gpus"][5]["mig"]] == ["3g.71gb", "2g.35gb", "1g.18gb", "1g.18gb"]


def test_the_agent_does_not_carry_the_table() -> None:
    script = "import sys, gpucommons.cli.main; sys.exit('rich.table' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], env={"PYTHONPATH": ":".join(sys.path)}).returncode == 0
