"""dcgm-exporter's list of counters and its options for labels: fields, types, label fields, pod labels, 1.x names."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given as any_of
from hypothesis import strategies as st

from faces.dialects.test_dcgm_pods import GPUS, given, series_of
from gpucommons.faces.dialects.dcgm import CATALOGUE, dcgm_dialect
from gpucommons.faces.dialects.dcgm.collectors import Collectors, Shape, parse_collectors, present_name
from gpucommons.faces.dialects.dcgm.labels import DcgmOptions
from gpucommons.faces.exposition.exposition import Exposition
from gpucommons.model.gpu import GpuReading
from gpucommons.model.snapshot import Readings, Snapshot
from gpucommons.model.workloads import Pod, PodReading
from parsing import parsed, types_of
from running import running_agent
from simulation.played_lab import PlayedLab

SERVED = [metric.name for metric in CATALOGUE]
LIST = """# Format
# DCGM FIELD, Prometheus metric type, help message

DCGM_FI_DEV_POWER_USAGE, gauge, Power draw (in W).
DCGM_FI_DEV_GPU_UTIL ,     counter, GPU utilization.
DCGM_FI_DRIVER_VERSION,        label, Driver Version
DCGM_FI_DEV_SERIAL, label, Device Serial Number
DCGM_FI_DEV_INFOROM_IMAGE_VER, label,"Inforom image, version"
"""
UID = "0f5c2b4e-1111-2222-3333-444455556666"
POD = Pod(UID, "train", "ml", labels={"app.kubernetes.io/name": "x", "team": "vision", "pod": "liar", "9lives": "cat"})


def chosen(text: str) -> Collectors:
    collectors, problems = parse_collectors(text, SERVED)
    assert problems == []
    return collectors


def families(text: str) -> set[str]:
    """With data. prometheus_client adds _total to the name of a counter."""
    return {name.removesuffix("_total") for name, _ in parsed(text)}


def text_of(shape: Shape, options: DcgmOptions | None = None) -> str:
    snapshot = PlayedLab().snapshot(100.0)
    exposition = Exposition(lambda: snapshot, [dcgm_dialect(options, shape)])
    return exposition.metrics("dcgm", False, False)[0].decode()


def test_a_list_sets_fields_types_help_and_labels() -> None:
    text = text_of(Shape(chosen(LIST)))
    assert families(text) == {"DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_GPU_UTIL"}
    assert types_of(text) == {"DCGM_FI_DEV_POWER_USAGE": "gauge", "DCGM_FI_DEV_GPU_UTIL": "counter"}
    assert "# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization.\n" in text
    labels = [dict(labels) for _, labels in parsed(text)]
    assert {one["DCGM_FI_DEV_INFOROM_IMAGE_VER"] for one in labels} == {"G520.0282.02.02"}
    assert len({one["DCGM_FI_DEV_SERIAL"] for one in labels}) == len({one["UUID"] for one in labels}) > 1
    assert all(one["DCGM_FI_DRIVER_VERSION"] for one in labels)


def test_without_the_driver_in_the_list_there_is_no_such_label() -> None:
    text = text_of(Shape(chosen("DCGM_FI_DEV_GPU_TEMP, gauge, Temperature.\n")))
    assert "DCGM_FI_DRIVER_VERSION" not in text
    assert len(parsed(text)) > 1


def test_the_whole_catalogue_in_a_list_is_served_as_without_one() -> None:
    rows = [f"{metric.name}, {metric.type}, {metric.help.replace(',', ';')}" for metric in CATALOGUE]
    listed = text_of(Shape(chosen("\n".join([*rows, "DCGM_FI_DRIVER_VERSION, label, Driver"]))))
    assert parsed(listed) == parsed(text_of(Shape()))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("DCGM_FI_DEV_GPU_TEMP, gauge", "expected a field, a type and a help"),
        ("DCGM_FI_DEV_GPU_TEMP, meter, Temperature.", "unknown type 'meter'"),
        ("DCGM_FI_DEV_FAN_OF_MINE, gauge, Fan.", "not available without DCGM"),
        ("DCGM_FI_DEV_GPU_TEMP, label, Temperature.", "cannot be a label"),
        ('"open, gauge, x', "expected a field"),
    ],
)
def test_a_wrong_line_costs_itself(line: str, problem: str) -> None:
    collectors, problems = parse_collectors(f"{LIST}{line}\n", SERVED)
    assert collectors == chosen(LIST)
    (found,) = problems
    assert found.startswith("line 9: ")
    assert problem in found


@any_of(st.text())
def test_any_text_is_a_list(text: str) -> None:
    parse_collectors(text, SERVED)


def test_names_of_version_1_are_kept() -> None:
    assert present_name("dcgm_sm_clock") == "DCGM_FI_DEV_SM_CLOCK"
    assert present_name("dcgm_fi_prof_dram_active") == "DCGM_FI_PROF_DRAM_ACTIVE"
    rows = "dcgm_gpu_utilization, gauge, Utilization.\ndcgm_fb_used, gauge, Memory.\ndcgm_xid_errors, gauge, XID.\n"
    text = text_of(Shape(chosen(rows), old_namespace=True))
    assert {name for name, _ in parsed(text)} == {"dcgm_gpu_utilization", "dcgm_fb_used", "dcgm_xid_errors"}


def test_the_old_namespace_renames_labels() -> None:
    (labels,) = [
        labels
        for labels, _ in series_of(
            "DCGM_FI_DEV_POWER_USAGE", given("train", "GPU-1"), dialect=dcgm_dialect(None, Shape(old_namespace=True))
        )
        if labels["uuid"] == "GPU-1"
    ]
    assert labels["pod_name"] == "train"
    assert labels["pod_namespace"] == "ml"
    assert labels["container_name"] == "main"
    assert labels.keys().isdisjoint({"UUID", "pod", "namespace", "container"})


def of_pod(options: DcgmOptions | None = None, shape: Shape | None = None) -> dict[str, str]:
    found = series_of(
        "DCGM_FI_DEV_POWER_USAGE",
        given("train", "GPU-1"),
        dialect=dcgm_dialect(options, shape),
        pods=PodReading.of([POD]),
    )
    (labels,) = [labels for labels, _ in found if labels["UUID"] == "GPU-1"]
    (other,) = [labels for labels, _ in found if labels["UUID"] == "GPU-0"]
    assert other.keys().isdisjoint({"team", "pod_uid", "pod"}), "only the pod's GPU has its labels"
    return labels


def test_pod_labels_and_the_uid_are_options() -> None:
    assert of_pod().keys().isdisjoint({"team", "pod_uid"})
    assert of_pod(DcgmOptions(pod_uid=True))["pod_uid"] == UID
    labels = of_pod(None, Shape(pod_labels=True))
    assert labels["team"] == "vision"
    assert labels["app_kubernetes_io_name"] == "x"
    assert labels["pod"] == "train", "a pod's label does not replace ours"
    assert not [name for name in labels if "lives" in name], "not a legal name"


def test_the_hostname_and_blanks_can_be_left_out() -> None:
    gpus = tuple(gpu._replace(identity=replace(gpu.identity, name="NVIDIA  H200 x")) for gpu in GPUS)
    reading = GpuReading("580", "13", "13.0", gpus, 3, 3)
    options = DcgmOptions(hostname_label="none", dashes_in_model_name=True)
    snapshot = Snapshot(0, 0.0, 0.0, "host", readings=Readings(gpus=reading))
    body, _ = Exposition(lambda: snapshot, [dcgm_dialect(options)]).metrics("dcgm", False, False)
    labels = [dict(labels) for _, labels in parsed(body.decode())]
    assert {one["modelName"] for one in labels} == {"NVIDIA-H200-x"}
    assert all({"Hostname", "hostname"}.isdisjoint(one) for one in labels)


@pytest.mark.long
def test_the_variables_of_dcgm_exporter_reach_a_running_agent(tmp_path: Path) -> None:
    file = tmp_path / "counters.csv"
    file.write_text(f"{LIST}DCGM_FI_DEV_WEIGHT, gauge, Weight.\n")
    environment = {
        "DCGM_EXPORTER_COLLECTORS": str(file),
        "DCGM_EXPORTER_NO_HOSTNAME": "true",
        "DCGM_EXPORTER_USE_OLD_NAMESPACE": "1",
        "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS": "true",
        "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID": "true",
        "DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX": "^app,team",
        "DCGM_EXPORTER_REPLACE_BLANKS_IN_MODEL_NAME": "true",
    }
    with running_agent("--simulate", "lab", environment=environment) as agent:
        text = agent.get("/metrics/dcgm")[1]
        assert families(text) == {"DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_GPU_UTIL"}
        labels = [dict(labels) for _, labels in parsed(text)]
        assert {one["modelName"] for one in labels} == {"NVIDIA-H200"}
        assert all("uuid" in one and "Hostname" not in one for one in labels)
        assert any("DCGM_FI_DEV_WEIGHT is not available without DCGM" in line for line in agent.lines)


@pytest.mark.long
def test_a_list_that_does_not_exist_is_reported_and_all_fields_are_served() -> None:
    with running_agent("--simulate", "lab", environment={"DCGM_EXPORTER_COLLECTORS": "/nowhere/x.csv"}) as agent:
        assert any("/nowhere/x.csv" in line for line in agent.lines)
        assert len(families(agent.get("/metrics/dcgm")[1])) > 30
