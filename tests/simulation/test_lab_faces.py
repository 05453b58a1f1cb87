"""The lab in every dialect: no family is empty without a reason, and the simulation is deterministic."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucommons.faces.dialects.all import DIALECTS
from gpucommons.faces.dialects.dialect import Dialect
from gpucommons.faces.exposition.families import MetricType
from gpucommons.model.snapshot import Readings
from gpucommons.simulation.day import DAY_S
from simulation.played_lab import PlayedLab

LAB = PlayedLab()

# Families without data in the lab, by prefix of their names, and why.
EMPTY = {
    "gpucommons_agent_": "filled by a running agent",
    "gpucommons_exposition_": "likewise",
    "gpucommons_web_": "likewise",
    "exposer_": "likewise",
    "gpucommons_source_": "likewise",
    "gpucommons_ledger_": "likewise",
    "gpucommons_leases": "likewise",
    "gpucommons_mps_": "likewise",
    "gpucommons_idle_": "likewise",
    "gpucommons_event_log_writing": "likewise",
    "gpucommons_kubernetes_": "offered and reported to a cluster, which a scenario does not have",
    "gpucommons_job_cpu": "read from Slurm, which a scenario does not have",
    "gpucommons_job_memory_": "likewise",
    "gpucommons_job_gpu_memory_share_": "likewise",
    "gpucommons_job_run_seconds": "likewise",
    "gpucommons_quota_": "quotas are settings",
    "gpucommons_accounts_": "prices are settings",
    "gpucommons_sharing_client_revoked": "no client ignores a request to stop",
    "gpucommons_gpu_health_problem": "all GPUs are healthy: scenario faults has these",
    "gpucommons_gpu_xid_errors_total": "likewise",
    "gpucommons_gpu_last_xid": "likewise",
    "gpucommons_gpu_xid_program_": "likewise",
    "gpucommons_gpu_critical_events_total": "likewise",
    "gpucommons_gpu_fan_ratio": "these H200 have no fans",
    "DCGM_FI_DEV_RETIRED_": "an H200 remaps rows instead of retiring pages",
    "gpucommons_nvml_": "there is no library to call",
    "gpucommons_gpu_unattributed_sm_ratio": "every process has an owner",
    "nvidia_smi_xid_": "all GPUs are healthy",
    "nvidia_smi_fan_": "these H200 have no fans",
    "nvidia_smi_retired_": "an H200 remaps rows instead of retiring pages",
    "nvidia_smi_last_": "filled by a running agent",
    "nvidia_smi_failed_": "likewise",
    "node_exporter_build_info": "filled by a running agent",
    "ds01_exporter_info": "likewise",
    "node_cpu_isolated": "the lab isolates no CPU",
    "node_disk_filesystem_info": "no whole disk has a file system",
    "node_disk_device_mapper_info": "the lab has no device mapper",
    "node_disk_ata": "its disks are NVMe",
    "node_memory_Cma": "a field that other kernels have",
    "node_memory_Unaccepted": "likewise",
    "node_memory_Balloon": "likewise",
    "node_memory_Zswap": "likewise",
    "node_hwmon_beep_enabled": "the boards lack such a sensor",
    "node_hwmon_voltage_regulator_version": "likewise",
    "node_hwmon_update_interval_seconds": "likewise",
    "node_hwmon_curr_amps": "likewise",
    "node_hwmon_energy_joule_total": "likewise",
    "node_hwmon_humidity": "likewise",
    "node_hwmon_power": "the power meter has only an average",
    "gpucommons_sharing_gain_ratio": "its scheduler is in serial mode, which measures no gain",
    "gpucommons_sharing_programs": "its clients carry nvshare's library",
    "gpucommons_sharing_class_programs": "likewise",
    "gpucommons_parking_": "likewise: only programs without it are parked",
    "gpucommons_pauser_": "likewise: only programs without it are paused",
    "gpucommons_vgpu_allocation_ratio_ok": "the device plugin sets the number of shares, not a file",
}
# Totals over time: filled by the ledger.
OF_TIME = tuple(
    f"gpucommons_owner_{what}_total"
    for what in (
        "held_gpu_seconds",
        "active_gpu_seconds",
        "idle_gpu_seconds",
        "gpu_equivalent_seconds",
        "sm_gpu_seconds",
        "memory_byte_seconds",
        "energy_joules",
    )
)


def filled(dialect: Dialect, elapsed_s: float) -> set[str]:
    return {
        family.metric.name for family in dialect.collect(LAB.snapshot(elapsed_s)) if family.points or family.histograms
    }


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_every_family_has_data_or_a_reason_why_it_has_none(dialect: Dialect) -> None:
    # Not every client waits at any one time: check a whole round of turns.
    with_data = set[str]().union(*(filled(dialect, 100.0 + second) for second in range(0, 20, 3)))
    missing = {metric.name for metric in dialect.catalogue} - with_data
    unexplained = [name for name in missing if not name.startswith((*EMPTY, *OF_TIME))]
    assert sorted(unexplained) == []


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_each_metric_is_yielded_once(dialect: Dialect) -> None:
    """A metric that is yielded in parts makes its dialect run twice at each scrape."""
    yielded = [family.metric.name for family in dialect.collect(LAB.snapshot(100))]
    assert len(yielded) == len(set(yielded))


@pytest.mark.long
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_counters_never_decrease(dialect: Dialect) -> None:
    looks = []
    for elapsed_s in range(1, int(DAY_S), 29):
        families = dialect.collect(LAB.snapshot(float(elapsed_s)))
        looks.append(
            {
                (family.metric.name, labels): value
                for family in families
                if family.metric.type is MetricType.COUNTER
                for labels, value in family.points
            }
        )
    for earlier, later in pairwise(looks):
        assert earlier.keys() <= later.keys(), "no series disappears"
        assert [key for key, value in earlier.items() if later[key] < value] == []


def values(readings: Readings) -> list[object]:
    """Readings that do not depend on the wall clock: two runs do not start in the same second."""
    names = (
        "cpu",
        "memory",
        "processes",
        "container_usage",
        "pods",
        "pod_devices",
        "job_mapping",
        "users",
        "ds01",
        "events",
        "sharing",
    )
    # Without derived readings: attribution of idle power depends on earlier readings, as on a real node.
    return [getattr(readings, name) for name in names]


@pytest.mark.long
@given(st.floats(1, 2 * DAY_S), st.floats(1, 2 * DAY_S))
@settings(max_examples=5)
def test_readings_depend_only_on_the_time(elapsed_s: float, before_s: float) -> None:
    once, twice = PlayedLab(), PlayedLab()
    twice.at(before_s)
    assert values(once.at(elapsed_s)) == values(twice.at(elapsed_s))
