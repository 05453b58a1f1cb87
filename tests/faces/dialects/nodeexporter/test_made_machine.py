"""The dialect and Debian's node_exporter on a machine made of files: nothing changes, so everything must be equal."""

import re
from pathlib import Path

import pytest

from faces.dialects.nodeexporter.comparison import differences, of_the_machine
from faces.dialects.nodeexporter.made_machine import MadeMachine, made_machine
from gpucommons.config.settings import NodeExporterSettings
from parsing import parsed, types_of
from promtool import judged
from running import running_agent
from testbeds.node_exporter import COLLECTORS, fetched, running_node_exporter
from waiting import until

UPSTREAM = NodeExporterSettings()


def their_arguments(settings: NodeExporterSettings) -> list[str]:
    return [
        f"--collector.filesystem.mount-points-exclude={settings.filesystem_mount_points_exclude}",
        f"--collector.filesystem.fs-types-exclude={settings.filesystem_fs_types_exclude}",
        f"--collector.diskstats.device-exclude={settings.diskstats_device_exclude}",
        f"--collector.netdev.device-exclude={settings.netdev_device_exclude}",
        f"--collector.netclass.ignored-devices={settings.netclass_ignored_devices or '^$'}",
        f"--collector.netstat.fields={settings.netstat_fields}",
        f"--collector.textfile.directory={settings.textfile_directory}",
    ]


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Both expositions of the made machine, ours from the drop-in listener."""
    machine = made_machine(tmp_path_factory.mktemp("made"))
    with running_node_exporter(
        f"--path.procfs={machine.procfs}",
        f"--path.sysfs={machine.sysfs}",
        f"--path.rootfs={machine.rootfs}",
        f"--path.udev.data={machine.udev_data}",
        *their_arguments(UPSTREAM),
    ) as theirs:
        return ours_of(machine), fetched(theirs)


def ours_of(machine: MadeMachine) -> str:
    environment = {
        "GPUCOMMONS_LISTENERS_NODEEXPORTER": "127.0.0.1:0",
        "GPUCOMMONS_PATH_SYSFS": str(machine.sysfs),
        "GPUCOMMONS_PATH_ROOTFS": str(machine.rootfs),
    }
    with running_agent("--path.procfs", str(machine.procfs), environment=environment) as agent:
        listener = re.search(r"(http://\S+) \(nodeexporter dialect alone\)", "\n".join(agent.lines))
        assert listener is not None, "\n".join(agent.lines)
        address = listener.group(1)

        def complete() -> str | None:
            text = fetched(address)
            return text if "node_filesystem_" in text and "node_hwmon_" in text else None

        return until(complete, "every source has been read")


def test_every_series_and_value_is_node_exporters(views: tuple[str, str]) -> None:
    ours, theirs = views
    # The counters of links, the clock and the free space of the disk are those of the real machine and may change.
    moving = (
        *("node_network_receive", "node_network_transmit_", "node_timex_"),
        *("node_filesystem_avail", "node_filesystem_free", "node_filesystem_files_free"),
    )
    assert [line for line in differences(ours, theirs) if not any(name in line for name in moving)] == []
    assert len(of_the_machine(theirs)) > 200, "there are series to compare"


def test_the_types_are_node_exporters(views: tuple[str, str]) -> None:
    ours, theirs = (types_of(text) for text in views)
    assert {name: kind for name, kind in ours.items() if theirs.get(name) != kind} == {}


def test_rare_features_are_served(views: tuple[str, str]) -> None:
    found = parsed(views[0])
    chip = ("chip", "platform_coretemp_0")
    assert found["node_hwmon_temp_celsius", (chip, ("sensor", "temp1"))] == 54
    assert found["node_hwmon_chip_names", (chip, ("chip_name", "coretemp"))] == 1
    assert found["node_cpu_core_throttles_total", (("core", "1"), ("package", "0"))] == 9
    assert found["node_cpu_isolated", (("cpu", "4"),)] == 1
    assert found["node_disk_ata_rotation_rate_rpm", (("device", "sda"),)] == 7200
    assert found["node_memory_A_Field_Of_2050_bytes", ()] == 3072, "a kernel may name fields that the catalogue lacks"
    assert {dict(labels)["collector"] for name, labels in found if name == "node_scrape_collector_success"} == set(
        COLLECTORS
    )


def test_the_build_is_named_with_node_exporters_labels(views: tuple[str, str]) -> None:
    ours, theirs = (
        [dict(labels) for name, labels in parsed(text) if name == "node_exporter_build_info"] for text in views
    )
    assert len(ours) == len(theirs) == 1
    assert ours[0].keys() == theirs[0].keys()
    for label in ("version", "goos", "goarch"):
        assert ours[0][label] == theirs[0][label]
    assert ours[0]["revision"].startswith("gpucommons-")


def test_promtool_complains_only_about_node_exporters_names(views: tuple[str, str]) -> None:
    ours, theirs = (set(judged(text)) for text in views)
    assert ours <= theirs
    assert theirs, "promtool does complain"


def test_a_view_of_another_machine_differs(views: tuple[str, str]) -> None:
    """The comparison detects a different value, a different label and a missing series."""
    ours, theirs = views
    assert list(differences(ours.replace("node_load1 0.61", "node_load1 0.62"), theirs))
    assert list(differences(ours.replace('device="sda"', 'device="sdz"'), theirs))
    assert list(differences(re.sub("(?m)^node_forks_total.*\n", "", ours), theirs))


@pytest.mark.long
def test_the_exclusions_are_those_of_the_settings(tmp_path: Path) -> None:
    """Debian's defaults differ from upstream's: with the same settings both programs agree."""
    machine = made_machine(tmp_path)
    debian = NodeExporterSettings(
        filesystem_mount_points_exclude="^/(dev|proc|run|sys|mnt|media|with space)($|/)",
        filesystem_fs_types_exclude="^(xfs|proc)$",
        diskstats_device_exclude="^(sda|loop)",
        netdev_device_exclude="^lo$",
        netclass_ignored_devices="^lo$",
        netstat_fields="^Tcp_InSegs$",
    )
    environment = {
        f"GPUCOMMONS_NODEEXPORTER_{name.upper()}": getattr(debian, name) for name in debian.__dataclass_fields__
    }
    with (
        running_node_exporter(
            f"--path.procfs={machine.procfs}",
            f"--path.rootfs={machine.rootfs}",
            *their_arguments(debian),
        ) as theirs,
        running_agent(
            "--path.procfs",
            str(machine.procfs),
            environment={"GPUCOMMONS_PATH_ROOTFS": str(machine.rootfs), **environment},
        ) as agent,
    ):
        until(lambda: "node_filesystem_" in agent.get("/metrics/nodeexporter")[1], "file systems are read")
        ours, peer = (of_the_machine(text) for text in (agent.get("/metrics/nodeexporter")[1], fetched(theirs)))
        names = ("node_filesystem_", "node_disk_reads", "node_network_", "node_netstat_")
        assert {key for key in ours if key[0].startswith(names)} == {key for key in peer if key[0].startswith(names)}
        devices = {dict(labels).get("device") for name, labels in ours if name.startswith("node_network_")}
        assert "lo" not in devices
