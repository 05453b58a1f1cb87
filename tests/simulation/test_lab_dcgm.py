"""The lab in the dcgm dialect: pods, batch jobs, NVLink, XIDs and clock events."""

import pytest

from gpucommons.faces.dialects.dcgm import DCGM, dcgm_dialect
from gpucommons.faces.dialects.dcgm.labels import DcgmOptions
from gpucommons.faces.dialects.dialect import Dialect
from gpucommons.faces.exposition.exposition import Exposition
from parsing import parsed
from simulation.played_lab import PlayedLab

LAB = PlayedLab()
Labelled = list[tuple[dict[str, str], float]]


def series_of(name: str, dialect: Dialect = DCGM, lab: PlayedLab = LAB, elapsed_s: float = 130.0) -> Labelled:
    snapshot = lab.snapshot(elapsed_s)
    body, _ = Exposition(lambda: snapshot, [dialect]).metrics("dcgm", False, False)
    return [(dict(labels), value) for (found, labels), value in parsed(body.decode()).items() if found == name]


def test_mig_devices_have_the_labels_of_their_jobs() -> None:
    jobs = {
        (labels["gpu"], labels["GPU_I_ID"]): labels["hpc_job"]
        for labels, _ in series_of("DCGM_FI_DEV_FB_USED")
        if "hpc_job" in labels
    }
    assert jobs == {("6", "1"): "48213", ("6", "6"): "48220"}


def test_pods_that_share_a_gpu_have_labels_only_if_enabled() -> None:
    def pods(dialect: Dialect) -> set[tuple[str, str, str | None]]:
        series = series_of("DCGM_FI_DEV_FB_FREE", dialect)
        return {(labels["gpu"], labels["pod"], labels.get("vgpu")) for labels, _ in series if "pod" in labels}

    own = ("7", "embeddings-0", None)
    assert pods(DCGM) == {own}
    per_pod = dcgm_dialect(DcgmOptions(shared="per_pod"))
    assert pods(per_pod) == {own, ("5", "llm-serve-6d9f7c5b8-x2x4k", "0"), ("5", "ray-worker-0", "1")}
    used = [(labels, value) for labels, value in series_of("DCGM_FI_DEV_FB_USED", per_pod) if labels["gpu"] == "5"]
    assert {labels.get("pod_uid", "") != "" for labels, _ in used if "pod" in labels} == {True}
    board = [value for labels, value in used if "pod" not in labels]
    assert sum(value for labels, value in used if "pod" in labels) < board[0], (
        "the third process on this GPU is not in a pod"
    )


@pytest.mark.long
def test_the_training_job_on_three_gpus_uses_nvlink() -> None:
    by_gpu = {labels["gpu"]: value for labels, value in series_of("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL")}
    assert [gpu for gpu, value in sorted(by_gpu.items()) if value] == ["0", "1", "2"]
    links = [dict(series_of(f"DCGM_FI_DEV_NVLINK_BANDWIDTH_L{n}")[0][0]) for n in range(18)]
    assert len(links) == 18
    gpm = {labels["gpu"]: value for labels, value in series_of("DCGM_FI_PROF_NVLINK_TX_BYTES")}
    assert by_gpu["0"] * 1000 * 1024 / 2 == pytest.approx(gpm["0"])


def test_clock_events_and_xids_are_counted_in_their_window() -> None:
    events = {
        (labels["gpu"], labels.get("clock_event")): value for labels, value in series_of("DCGM_EXP_CLOCK_EVENTS_COUNT")
    }
    assert events["3", "gpu_idle"] == 5, "at 0, 30, 60, 90 and 120 s"
    assert {value for labels, value in series_of("DCGM_EXP_XID_ERRORS_COUNT")} == {0}
    broken = series_of("DCGM_EXP_XID_ERRORS_COUNT", lab=PlayedLab("faults"))
    assert {(labels["gpu"], labels["xid"]): value for labels, value in broken if "xid" in labels} == {
        ("3", "79"): 1,
        ("5", "31"): 9,
        ("5", "45"): 3,
    }
