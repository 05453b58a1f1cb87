"""Where the dialect is served, and what it serves for a machine that cannot be read."""

import re
import sys
from pathlib import Path

import pytest

from gpucommons.faces.dialects.all import DIALECTS
from gpucommons.faces.dialects.nodeexporter import NODEEXPORTER
from gpucommons.faces.exposition.exposition import Exposition
from gpucommons.model.host import Chip, CpuReading, CpuThrottles, HardwareReading, KernelReading, ReadRun, Sensor
from gpucommons.model.snapshot import Readings, Snapshot, SourceState
from parsing import Series, parsed, types_of
from promtool import judged
from running import command_process, running_agent
from simulation.played_lab import PlayedLab
from waiting import until

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's /proc")


def served(readings: Readings, *states: SourceState) -> Series:
    snapshot = Snapshot(0, 0.0, 1.7e9, "host", readings=readings, sources={state.name: state for state in states})
    body, _ = Exposition(lambda: snapshot, DIALECTS).metrics("nodeexporter", openmetrics=False, gzip=False)
    return parsed(body.decode())


def test_it_is_not_part_of_all_dialects() -> None:
    snapshot = PlayedLab().snapshot(100.0)
    with_it = Exposition(lambda: snapshot, DIALECTS)
    without = Exposition(lambda: snapshot, [dialect for dialect in DIALECTS if dialect is not NODEEXPORTER])
    for openmetrics in (False, True):
        assert with_it.metrics(None, openmetrics, False) == without.metrics(None, openmetrics, False)
    assert b"\nnode_load1 " in with_it.metrics("nodeexporter", False, False)[0]


def test_no_other_dialect_uses_its_names() -> None:
    """It could be part of /metrics, but node_exporter itself may run on the node."""
    others = {metric.name for dialect in DIALECTS if dialect is not NODEEXPORTER for metric in dialect.catalogue}
    assert others.isdisjoint(metric.name for metric in NODEEXPORTER.catalogue)


def test_unlisted_families_have_an_open_prefix() -> None:
    snapshot = PlayedLab().snapshot(100.0)
    memory = snapshot.readings.memory
    assert memory is not None
    newer = snapshot.readings._replace(memory=memory._replace(sizes={**memory.sizes, "Brand(new)": 4096}))
    families = list(NODEEXPORTER.collect(snapshot._replace(readings=newer)))
    unlisted = {family.metric for family in families} - set(NODEEXPORTER.catalogue)
    assert {metric.name for metric in unlisted} == {
        "node_memory_Brand_new_bytes",
        "backup_last_success_timestamp_seconds",
    }
    of_the_machine = [metric for metric in unlisted if not metric.name.startswith("backup_")]
    assert all(metric.name.startswith(NODEEXPORTER.open_prefixes) for metric in of_the_machine)


def test_the_lab_is_well_formed_in_both_formats() -> None:
    snapshot = PlayedLab().snapshot(100.0)
    exposition = Exposition(lambda: snapshot, DIALECTS)
    text, openmetrics = (exposition.metrics("nodeexporter", how, False)[0].decode() for how in (False, True))
    found = parsed(text)
    assert found == parsed(openmetrics, openmetrics=True)
    assert types_of(text)["node_vmstat_pgfault"] == "unknown"
    assert sum(name == "node_cpu_seconds_total" for name, _ in found) == 64 * 8
    # promtool's complaints about node_exporter's names are compared in another test.
    assert not [line for line in judged(text) if "not 'camelCase'" not in line]


def test_a_failed_collector_is_reported() -> None:
    cpu = CpuReading(4, None, None, None, 0.5)
    kernel = KernelReading(vmstat={}, runs={"vmstat": ReadRun(0.25), "disks": ReadRun(0.5, "no such file")})
    hardware = HardwareReading(None, 0, CpuThrottles(), ())
    up = [SourceState(name, up=True, duration_s=0.125) for name in ("cpu", "hardware")]
    down = SourceState("memory", up=False, duration_s=2.0)
    found = served(Readings(cpu=cpu, kernel=kernel, hardware=hardware), *up, down)
    success = {dict(labels)["collector"]: value for (name, labels), value in found.items() if name.endswith("_success")}
    assert success == {"cpu": 1, "stat": 1, "loadavg": 0, "hwmon": 0, "meminfo": 0, "vmstat": 1, "diskstats": 0}
    assert found["node_scrape_collector_duration_seconds", (("collector", "diskstats"),)] == 0.5
    assert found["node_scrape_collector_duration_seconds", (("collector", "cpu"),)] == 0.125
    assert not [name for name, _ in found if name.startswith(("node_disk", "node_load", "node_memory"))]


def test_a_kernel_source_that_is_down_fails_each_of_its_collectors() -> None:
    found = served(Readings(), SourceState("kernel", up=False, duration_s=5.0))
    success = {dict(labels)["collector"] for (name, labels), value in found.items() if name.endswith("_success")}
    assert success == {
        *("vmstat", "diskstats", "netdev", "filefd", "conntrack", "sockstat", "uname", "time", "timex", "netstat"),
        *("netclass", "softnet", "bonding", "mdadm"),
    }


def test_one_chip_that_fails_is_a_failure_of_the_collector() -> None:
    chip = Chip("platform_x", "x", (Sensor("temp1", "temp", None, {"input": 1500}),))
    hardware = HardwareReading((chip,), 1, CpuThrottles(), ())
    found = served(Readings(hardware=hardware), SourceState("hardware", up=True, duration_s=1.0))
    assert found["node_scrape_collector_success", (("collector", "hwmon"),)] == 0
    assert found["node_hwmon_temp_celsius", (("chip", "platform_x"), ("sensor", "temp1"))] == 1.5


@pytest.mark.long
@linux
def test_it_starts_with_nothing_to_read(tmp_path: Path) -> None:
    nowhere = str(tmp_path / "nowhere")
    environment = {"GPUCOMMONS_PATH_SYSFS": nowhere, "GPUCOMMONS_PATH_ROOTFS": nowhere}
    with running_agent("--path.procfs", nowhere, environment=environment) as agent:
        until(lambda: 'collector="filesystem"' in agent.get("/metrics/nodeexporter")[1], "it is read")
        found = parsed(agent.get("/metrics/nodeexporter")[1])
        for collector in ("cpu", "meminfo", "filesystem", "vmstat", "uname", "hwmon"):
            assert found["node_scrape_collector_success", (("collector", collector),)] == 0
        # Netlink, the clock and text files do not depend on these directories.
        kept = (
            *("node_scrape_", "node_network_receive_", "node_network_transmit_"),
            *("node_time_", "node_timex_", "node_textfile_"),
        )
        assert [name for name, _ in found if not name.startswith(kept)] == [], "missing values are absent, not 0"
        assert agent.get("/healthz")[0] == 200
        assert agent.stop() == 0


@pytest.mark.long
@linux
def test_the_commands_and_the_listeners_serve_it_by_name() -> None:
    done = command_process("sample", "--dialect", "nodeexporter")
    assert ("node_load1", ()) in parsed(done.stdout)
    assert not re.search("(?m)^node_load1 ", command_process("sample").stdout)
    with running_agent(environment={"GPUCOMMONS_LISTENERS_NODEEXPORTER": "127.0.0.1:0"}) as agent:
        assert "(nodeexporter dialect alone)" in "\n".join(agent.lines)
        assert ("node_load1", ()) in parsed(agent.get("/metrics/nodeexporter")[1])
        assert ("node_load1", ()) not in parsed(agent.get("/metrics")[1])


@pytest.mark.long
def test_a_simulation_does_not_show_the_real_host() -> None:
    """The name and disks of the real host must not appear in a scenario."""
    found = parsed(command_process("sample", "--simulate", "lab", "--dialect", "nodeexporter").stdout)
    assert {dict(labels)["nodename"] for name, labels in found if name == "node_uname_info"} == {"lab"}
    assert {dict(labels)["device"] for name, labels in found if name == "node_disk_info"} == {"nvme0n1", "nvme1n1"}
    assert {dict(labels)["fstype"] for name, labels in found if name == "node_filesystem_size_bytes"} >= {"nfs4", "xfs"}
    assert found["node_scrape_collector_success", (("collector", "hwmon"),)] == 1
