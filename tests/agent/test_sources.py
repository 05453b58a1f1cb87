"""The list of all sources agrees with the snapshot that they fill."""

import sys
from typing import get_args, get_type_hints

import pytest

from gpucommons.agent.kubernetes import kubernetes_part
from gpucommons.agent.sources import agent_sources
from gpucommons.config.settings import (
    AlertsSettings,
    DcgmSettings,
    KubernetesSettings,
    Settings,
    SlurmSettings,
    VgpuSettings,
)
from gpucommons.model.snapshot import Readings
from gpucommons.model.workloads import UsersReading
from gpucommons.simulation.scenario import Scenario
from gpucommons.simulation.scenarios import SCENARIOS
from gpucommons.sources.source import Source

EVERYTHING = Settings(
    alerts=AlertsSettings(alertmanager_url="http://127.0.0.1:1"),
    dcgm=DcgmSettings(hpc_job_mapping_dir="/nowhere"),
    kubernetes=KubernetesSettings(shares_per_gpu=2, report_faults="condition"),
    slurm=SlurmSettings(job_directory="/nowhere"),
    vgpu=VgpuSettings(allocation_file="/nowhere/ratio"),
)
# Made by the accounts and the scheduler, or derived from other readings.
ELSEWHERE = {
    "leases",
    "ledger",
    "event_log",
    "accounts",
    "sharing",
    "idle",
    "agent",
    "attribution",
    "xid_programs",
    "process_contexts",
    "allocations",
    "slots",
}

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's /proc")


def sources(scenario: Scenario | None = None) -> list[Source]:
    part = kubernetes_part(EVERYTHING)
    assert part is not None
    return agent_sources(EVERYTHING, scenario, part.sources())[0]


@linux
def test_every_reading_has_exactly_one_source() -> None:
    fed = sorted(source.feeds for source in sources())
    assert fed == sorted(set(Readings._fields) - ELSEWHERE)


@pytest.mark.parametrize("scenario", [None, *SCENARIOS.values()])
def test_a_source_produces_what_its_field_holds(scenario: Scenario | None) -> None:
    hints = get_type_hints(Readings)
    for source in sources(scenario):
        assert source.produces in get_args(hints[source.feeds]), source.name


@linux
def test_the_deadline_of_the_driver_is_past_at_the_third_tick() -> None:
    (nvml,) = (source for source in sources() if source.name == "nvml")
    assert 2 * nvml.cadence_s < nvml.deadline_s < 3 * nvml.cadence_s


@linux
def test_the_users_of_this_machine_are_read() -> None:
    (users,) = (source for source in sources() if source.name == "users")
    reading = users.read()
    assert isinstance(reading, UsersReading)
    assert reading.names[0] == "root"
