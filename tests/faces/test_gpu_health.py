"""Every face reports the same health of a GPU: metrics, API, `gpus` and `top`. tests/page compares the page."""

from collections.abc import Mapping
from typing import Any

import pytest

from gpucommons.cli.gpus_view import gpu_lines
from gpucommons.cli.top_rows import gpu_rows
from gpucommons.faces.dialects.all import DIALECTS
from gpucommons.faces.exposition.exposition import Exposition
from gpucommons.model.problems import HealthLevel
from gpucommons.model.snapshot import Readings, Snapshot
from gpucommons.rules.health import gpu_health_of
from gpucommons.simulation.lab_gpus import LabGpus
from gpucommons.simulation.scenarios import HOT_GPU, LOST_GPU, XID_GPU, FaultyGpus
from parsing import parsed
from played import Played, snapshot_of
from terminal import texts_of

START = 1.76e9

# By the index of the GPU: its level and the names of its reasons.
Healths = dict[int, tuple[str, set[str]]]


def by_the_rule(snapshot: Snapshot) -> Healths:
    assert snapshot.readings.gpus is not None
    healths = {gpu.identity.index: gpu_health_of(gpu, snapshot.wall_s) for gpu in snapshot.readings.gpus.gpus}
    return {i: (health.level.name.lower(), {each.name for each in health.reasons}) for i, health in healths.items()}


def in_the_api(gpus: Mapping[str, Any]) -> Healths:
    return {g["index"]: (g["health"]["level"], set(g["health"]["reasons"])) for g in gpus["by_uuid"].values()}


def in_the_metrics(snapshot: Snapshot) -> Healths:
    body, _ = Exposition(lambda: snapshot, DIALECTS).metrics("gpucommons", openmetrics=False, gzip=False)
    samples = [(name, dict(labels), value) for (name, labels), value in parsed(body.decode()).items()]
    found: Healths = {
        int(labels["gpu"]): (HealthLevel(int(value)).name.lower(), set())
        for name, labels, value in samples
        if name == "gpucommons_gpu_health"
    }
    for name, labels, _ in samples:
        if name == "gpucommons_gpu_health_problem":
            found[int(labels["gpu"])][1].add(labels["problem"])
    return found


def in_the_table(gpus: Mapping[str, Any]) -> Healths:
    found: Healths = {}
    for line in texts_of(gpu_lines(gpus, None, None))[1:-1]:
        if line[0].isdigit():
            level, *reasons = line.rstrip().split("  ")[-1].split(", ")
            found[int(line.split()[0])] = level, set(reasons)
    return found


@pytest.mark.parametrize("elapsed_s", [0.0, 15.0, 30.0, 400.0, 599.0])
def test_all_faces_agree_on_scenario_faults(elapsed_s: float) -> None:
    reading = FaultyGpus(LabGpus(START)).at(elapsed_s)
    snapshot = snapshot_of(Readings(gpus=reading), elapsed_s, wall_s=START)
    played = Played()
    played.show(snapshot)
    document = played.get("snapshot")
    expected = by_the_rule(snapshot)
    assert expected[HOT_GPU] == ("warning", {"hot", "hw_slowdown", "hw_thermal_slowdown"})
    if elapsed_s == 30.0:
        assert (expected[LOST_GPU][0], expected[XID_GPU][0]) == ("lost", "warning")
    assert in_the_api(document["gpus"]) == expected
    assert in_the_metrics(snapshot) == expected
    assert in_the_table(document["gpus"]) == expected
    marked = {
        int(row.cells[0].rstrip("!")): row.cells[0].endswith("!")
        for row in gpu_rows(document, {})
        if "." not in row.cells[0]
    }
    assert marked == {index: level != "ok" for index, (level, _) in expected.items()}
