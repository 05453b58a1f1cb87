"""DS01's panels with the simulated lab: promtool evaluates our rules and DS01's queries over the served series."""

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from gpucommons.faces.dialects.all import DIALECTS
from gpucommons.faces.exposition.exposition import Exposition
from gpucommons.simulation.day import DAY_S
from needs import needs_program
from parsing import Series, parsed
from simulation.played_lab import PlayedLab
from stack.promql import RULES

NOON_S, NIGHT_S = 0.25 * DAY_S, 0.75 * DAY_S
WHOLE_GPUS, SPLIT_GPUS, MIG_DEVICES = 6, 2, 11
SLICES = 7
HELD_MIG_DEVICES = 8
# Held whole GPUs, then the slices of the held MIG devices: 3g, 2g and six of 1g.
HELD_EQUIVALENTS = WHOLE_GPUS + (3 + 2 + 6 * 1) / SLICES

# DS01 joins its slots with DCGM's series by these labels.
MIG_UTILIZATION = (
    'label_replace(DCGM_FI_PROF_GR_ENGINE_ACTIVE{GPU_I_ID!=""} * on (gpu, GPU_I_ID) group_left (slot)'
    ' label_replace(ds01_mig_slot_info, "GPU_I_ID", "$1", "gpu_i_id", "(.+)"), "gpu_slot", "$1", "slot", "(.+)")'
)
GPU_UTILIZATION = 'label_replace(DCGM_FI_DEV_GPU_UTIL{GPU_I_ID=""}, "gpu_slot", "$1", "gpu", "(.+)")'
ALLOCATED_UTILIZATION = f"ds01_gpu_allocated * on (gpu_slot) group_left () ({MIG_UTILIZATION} or {GPU_UTILIZATION})"


def served(elapsed_s: float) -> Series:
    snapshot = PlayedLab().snapshot(elapsed_s)
    dialects = [dialect for dialect in DIALECTS if dialect.name in ("ds01", "dcgm")]
    body, _ = Exposition(lambda: snapshot, dialects).metrics(None, False, gzip=False)
    return parsed(body.decode())


def selector(name: str, labels: tuple[tuple[str, str], ...]) -> str:
    """A series as Prometheus stores it after scraping a node."""
    pairs = (("node", "lab"), *labels)
    return f"{name}{{{','.join(f'{label}={json.dumps(text)}' for label, text in pairs)}}}"


def check(tmp_path: Path, series: Series, expected: dict[str, float]) -> None:
    """Checks the sum over all series of each expression."""
    test = {
        "interval": "1m",
        "input_series": [
            {"series": selector(name, labels), "values": f"{value!r}x5"} for (name, labels), value in series.items()
        ],
        "promql_expr_test": [
            {"expr": f"sum({expression})", "eval_time": "5m", "exp_samples": [{"labels": "{}", "value": value}]}
            for expression, value in expected.items()
        ],
    }
    order = ["gpucommons-devices", "ds01-slots", "ds01-users"]
    document = {
        "rule_files": [str(RULES / "recording.yml")],
        "evaluation_interval": "1m",
        "group_eval_order": order,
        "tests": [test],
    }
    file = tmp_path / "lab.test.yml"
    file.write_text(yaml.safe_dump(document))
    done = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.parametrize(("elapsed_s", "kills"), [(NOON_S, 9 + 2 + 1), (NIGHT_S, 10 + 2 + 1)], ids=["noon", "night"])
def test_the_lab_in_ds01s_panels(tmp_path: Path, elapsed_s: float, kills: int) -> None:
    needs_program("promtool")
    series = served(elapsed_s)
    allocations = sum(name == "ds01_gpu_allocated" for name, _ in series)
    check(
        tmp_path,
        series,
        {
            # DS01's own rules over our series
            "count(ds01_gpu_slot_info) + count(ds01_mig_slot_info)": WHOLE_GPUS + MIG_DEVICES,
            "ds01_unmanaged_gpu_count or vector(0)": 1,
            "ds01_unmanaged_gpu_running or vector(0)": 1,
            "ds01_unmanaged_gpu_all_access or vector(0)": 1,
            "sum(ds01_lifecycle_events_total) or vector(0)": kills,
            'sum(ds01_lifecycle_events_total{action=~"idle_kill|runtime_kill|oom_kill"})': kills,
            "count(ds01_lifecycle_events_total)": 7,
            'sum(ds01_containers_total{status="running"})': 6,
            "min(ds01_mig_mapping_status)": 1,
            'count(ds01_mig_mapping_status{mapped="11",unmapped="0"})': 1,
            'count(ds01_gpu_allocated{profile="full"})': allocations - HELD_MIG_DEVICES,
            f"count({ALLOCATED_UTILIZATION})": allocations,
            # Three pods and a system service have no group.
            "count(ds01_gpu_allocated * on (user) group_left (group) ds01_user_group_info)": allocations - 4,
            # ours
            "ds01:slots:total": WHOLE_GPUS + MIG_DEVICES,
            "ds01:slots:allocated": WHOLE_GPUS + HELD_MIG_DEVICES,
            "ds01:slots:free": MIG_DEVICES - HELD_MIG_DEVICES,
            "ds01:equivalents:total": WHOLE_GPUS + SPLIT_GPUS,
            "round(ds01:equivalents:allocated, 0.000001)": round(HELD_EQUIVALENTS, 6),
            "round(ds01:equivalents:free, 0.000001)": round(WHOLE_GPUS + SPLIT_GPUS - HELD_EQUIVALENTS, 6),
            "count(ds01:slot_utilization:ratio)": WHOLE_GPUS + MIG_DEVICES,
            "count(ds01:slot_memory_used:ratio)": WHOLE_GPUS + MIG_DEVICES,
            "count(ds01:allocation_utilization:ratio)": allocations,
        },
    )
