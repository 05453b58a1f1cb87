"""The lab in dcgm's names: pods, batch jobs, NVLink, XIDs and clock events, as a cluster's node shows them."""

import pytest

from gpucommons.faces.dialects.dcgm import DCGM, dcgm_dialect
from gpucommons.faces.dialects.dcgm.labels import DcgmOptions
from gpucommons.faces.dialects.dialect import Dialect
from gpucommons.faces.exposition.exposition import Exposition
from parsing import parsed
from simulation.played_lab import PlayedLab

LAB = PlayedLab()
Labelled = list[tuple[dict[str, str], float]]


def told(name: str, dialect: Dialect = DCGM, lab: PlayedLab = LAB, elapsed_s: float = 130.0) -> Labelled:
    snapshot = lab.snapshot(elapsed_s)
    body, _ = Exposition(lambda: snapshot, [dialect]).metrics("dcgm", False, False)
    return [(dict(labels), value) for (found, labels), value in parsed(body.decode()).items() if found == name]


def test_jobs_are_named_on_their_mig_devices() -> None:
    jobs = {
        (labels["gpu"], labels["GPU_I_ID"]): labels["hpc_job"]
        for labels, _ in told("DCGM_FI_DEV_FB_USED")
        if "hpc_job" in labels
    }
    assert jobs == {("6", "1"): "48213", ("6", "6"): "48220"}


def test_the_pod_with_a_mig_device_of_its_own_is_named_and_those_that_share_if_asked_for() -> None:
    def pods(dialect: Dialect) -> set[tuple[str, str, str | None]]:
        series = told("DCGM_FI_DEV_FB_FREE", dialect)
        return {(labels["gpu"], labels["pod"], labels.get("vgpu")) for labels, _ in series if "pod" in labels}

    own = ("7", "embeddings-0", None)
    assert pods(DCGM) == {own}
    per_pod = dcgm_dialect(DcgmOptions(shared="per_pod"))
    assert pods(per_pod) == {own, ("5", "llm-serve-6d9f7c5b8-x2x4k", "0"), ("5", "ray-worker-0", "1")}
    used = [(labels, value) for labels, value in told("DCGM_FI_DEV_FB_USED", per_pod) if labels["gpu"] == "5"]
    assert {labels.get("pod_uid", "") != "" for labels, _ in used if "pod" in labels} == {True}
    board = [value for labels, value in used if "pod" not in labels]
    assert sum(value for labels, value in used if "pod" in labels) < board[0], "the third on this GPU is in no pod"


def test_nvlink_carries_the_training_that_spans_gpus() -> None:
    by_gpu = {labels["gpu"]: value for labels, value in told("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL")}
    assert [gpu for gpu, value in sorted(by_gpu.items()) if value] == ["0", "1", "2"]
    links = [dict(told(f"DCGM_FI_DEV_NVLINK_BANDWIDTH_L{n}")[0][0]) for n in range(18)]
    assert len(links) == 18
    gpm = {labels["gpu"]: value for labels, value in told("DCGM_FI_PROF_NVLINK_TX_BYTES")}
    assert by_gpu["0"] * 1000 * 1024 / 2 == pytest.approx(gpm["0"])


def test_clock_events_and_xids_are_counted_in_their_window() -> None:
    events = {
        (labels["gpu"], labels.get("clock_event")): value for labels, value in told("DCGM_EXP_CLOCK_EVENTS_COUNT")
    }
    assert events["3", "gpu_idle"] == 5, "at 0, 30, 60, 90 and 120 s"
    assert {value for labels, value in told("DCGM_EXP_XID_ERRORS_COUNT")} == {0}
    broken = told("DCGM_EXP_XID_ERRORS_COUNT", lab=PlayedLab("faults"))
    assert {(labels["gpu"], labels["xid"]): value for labels, value in broken if "xid" in labels} == {
        ("3", "79"): 1,
        ("5", "31"): 9,
        ("5", "45"): 3,
    }
