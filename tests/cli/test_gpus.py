"""`gpucommons gpus`: the table and the JSON, with a fake driver, a scenario and without a driver."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from fakes.nvml.build import build
from fakes.nvml.control import FakeNvml, process
from gpucommons.cli.gpus_view import gpu_lines, missing
from gpucommons.cli.one_sample import api_document, take_sample
from gpucommons.faces.documents.values import indent
from gpucommons.model.gpu import GpuReading
from gpucommons.model.snapshot import Readings
from gpucommons.simulation.lab_gpus import LabGpus
from gpucommons.simulation.scenarios import FaultyGpus
from needs import needs_program
from played import Played, snapshot_of
from running import command_process
from terminal import texts_of

START = 1_700_000_000.0


def document_of(reading: GpuReading | None) -> Any:
    played = Played()
    played.show(snapshot_of(Readings(gpus=reading), 30.0, wall_s=START))
    return played.get("snapshot")


def table_of(reading: GpuReading) -> list[str]:
    return texts_of(gpu_lines(document_of(reading)["gpus"], None, None))


def test_with_a_driver(tmp_path: Path) -> None:
    needs_program("cc")
    fake = FakeNvml(tmp_path / "driver", build(tmp_path / "lib"))
    fake.say("gpus 2", "recording busy", process(0, 10, 2**30), process(0, 11, 2**30))
    # This machine may have a kubelet whose pods hold GPUs of these indices.
    environment = {**fake.environment(), "GPUCOMMONS_PATH_KUBELET_SOCKET": str(tmp_path / "kubelet.sock")}
    shown = command_process("gpus", environment=environment).stdout.splitlines()
    assert shown[0] == "1 free (GPU 1) · 1 busy"
    header = "GPU MODEL UTIL MEMORY TEMP POWER PROCESSES OWNER STATE UUID HEALTH"
    assert shown[1].split() == header.split()
    first = shown[2]
    for words in ("GPU-3ea3f955-c0e4-1497-8afd-c9836cb19860", "1.3 / 140.4 GiB", "100%", "63 C", "695 / 700 W", "ok"):
        assert words in first
    assert shown[-1] == "2 GPUs, driver 580.159.04, CUDA 13.0"
    document = json.loads(command_process("gpus", "--json", environment=environment).stdout)
    first, second = document["gpus"]["by_uuid"].values()
    assert (first["utilization_ratio"], second["utilization_ratio"]) == (1, 1)
    assert (first["processes"], second["processes"]) == (2, 0)


def test_without_a_driver_it_prints_why_in_one_line() -> None:
    document = document_of(None)
    document["node"]["sources"]["nvml"] = {"detail": "no NVIDIA driver", "remedy": "install it"}
    assert missing(document) == "no GPU readings: no NVIDIA driver; install it"


def test_the_json_is_the_answer_of_the_api() -> None:
    _, snapshot = take_sample(None, "lab", None)
    played = Played()
    played.show(snapshot)
    assert json.loads(indent(api_document(snapshot, "gpus"))) == played.get("gpus")
    # The timeline of the turns is the history of a running agent.
    printed, served = json.loads(indent(api_document(snapshot, "snapshot"))), played.get("snapshot")
    assert {**printed, "turns": None} == {**served, "turns": None}


def test_the_lab_with_its_instances() -> None:
    shown = table_of(LabGpus(START).at(30.0))
    assert len(shown) == 1 + 8 + 11 + 1
    instance = next(line for line in shown if "MIG 3g.71gb" in line)
    assert instance.split()[0] == "6.0"
    assert "/ 69.5 GiB" in instance
    split = next(line for line in shown if line.startswith("6 "))
    assert " - " in split, "the utilisation of a GPU in MIG mode is unknown, not 0"


def test_a_lost_and_a_hot_gpu() -> None:
    shown = table_of(FaultyGpus(LabGpus(START)).at(30.0))
    lost = next(line for line in shown if line.startswith("3 "))
    assert "lost, gpu_is_lost" in lost
    assert lost.count(" - ") == 5
    hot = next(line for line in shown if line.startswith("1  "))
    assert "hot" in hot
    assert "91 C" in hot
    assert shown[-1].startswith("7 GPUs of 8, ")


def test_a_name_with_control_characters_is_escaped() -> None:
    reading = LabGpus(START).at(1.0)
    name = "[red]\x1b[2Jx[/red]"
    gpu = reading.gpus[0]._replace(identity=replace(reading.gpus[0].identity, name=name))
    shown = "\n".join(table_of(reading._replace(gpus=(gpu,))))
    assert "[red]\\x1b[2Jx[/red]" in shown
    assert "\x1b" not in shown


def test_rich_is_imported_only_for_a_table() -> None:
    script = "import sys, gpucommons.cli.main; sys.exit('rich.table' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], env={"PYTHONPATH": ":".join(sys.path)}).returncode == 0
