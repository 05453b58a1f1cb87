"""The systemd units, checked by systemd's own tool."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from gpucommons.base.address import parse_unix_address
from gpucommons.config.load import load
from gpucommons.config.runtime_directory import known_sockets, served_socket
from gpucommons.pauser.places import SERVICE_RECORD, SERVICE_SOCKET, default_record, known_records
from gpucommons.pauser.watchdog import SILENT_S
from needs import needs_program

UNITS = sorted((Path(__file__).resolve().parents[2] / "deploy" / "systemd").glob("*.service"))
PROGRAM = re.compile(r"/opt/gpucommons/bin/\w+")
PAUSER = next(unit for unit in UNITS if unit.name == "gpucommons-pauser.service")


def analyze(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, timeout=60)


def test_there_are_units() -> None:
    assert [unit.name for unit in UNITS] == [
        "gpucommons-pauser.service",
        "gpucommons-stack.service",
        "gpucommons.service",
    ]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_is_valid(unit: Path, tmp_path: Path) -> None:
    needs_program("systemd-analyze")
    copy = tmp_path / unit.name
    # The program is not installed where the unit expects it; everything else is as shipped.
    copy.write_text(PROGRAM.sub("/bin/true", unit.read_text()))
    done = analyze("verify", str(copy))
    assert (done.returncode, done.stderr) == (0, "")
    copy.write_text(re.sub("ProtectHome=.*", "ProtectHome=perhaps", copy.read_text()))
    assert "protect home" in analyze("verify", str(copy)).stderr, "an invalid file is refused"


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_has_a_low_exposure(unit: Path) -> None:
    needs_program("systemd-analyze")
    done = analyze("security", "--offline=true", "--no-pager", str(unit))
    found = re.search(r"exposure level for \S+: ([\d.]+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert float(found.group(1)) < 3.0


DROP_INS = sorted(UNITS[0].parent.glob("*.conf"))


@pytest.mark.parametrize("drop_in", DROP_INS, ids=lambda drop_in: drop_in.name)
def test_a_drop_in_is_valid_and_switches_its_part_on(drop_in: Path, tmp_path: Path) -> None:
    needs_program("systemd-analyze")
    for unit in UNITS:
        (tmp_path / unit.name).write_text(PROGRAM.sub("/bin/true", unit.read_text()))
    copy = tmp_path / "gpucommons.service.d" / drop_in.name
    copy.parent.mkdir()
    copy.write_text(PROGRAM.sub("/bin/true", drop_in.read_text()))
    done = analyze("verify", str(tmp_path / "gpucommons.service"))
    assert (done.returncode, done.stderr) == (0, "")
    copy.write_text(copy.read_text() + "KillMode=perhaps\n")
    assert "kill mode" in analyze("verify", str(tmp_path / "gpucommons.service")).stderr, "the drop-in is read"
    if drop_in.name == "kernel-log.conf":
        given = settings_of(drop_in)
        assert given["CapabilityBoundingSet"] == given["AmbientCapabilities"] == ["CAP_SYSLOG"]
        assert given["DeviceAllow"] == [f"{load(None, {}, {}).settings.path.kernel_log} r"]
        assert given["ProtectKernelLogs"] == ["no"]
        return
    (variable,) = settings_of(drop_in)["Environment"]
    name, _, value = variable.partition("=")
    settings = load(None, {name: value}, {}).settings
    is_mps = drop_in.name == "mps.conf"
    assert (settings.scheduler.share_programs, settings.leases.mps) == (
        ("off", "per_user") if is_mps else ("all", "off")
    )


def test_the_drop_ins_are_for_an_agent_without_rights_and_for_one_that_is_root() -> None:
    plain, as_root = (settings_of(UNITS[0].parent / name) for name in ("sharing.conf", "sharing-as-root.conf"))
    # The agent finds the service's socket where it is not root; a root agent starts the pauser and resumes by itself.
    assert "User" not in plain
    naming = {name for name, values in plain.items() if values == [PAUSER.name]}
    assert "After" in naming
    assert len(naming) == 2, "it is started, too"
    assert settings_of(PAUSER)["Before"] == ["gpucommons.service"]
    assert as_root["User"] == ["root"]
    for name in ("ExecStopPost", "RuntimeDirectoryPreserve", "KillMode", "TimeoutStopSec", "CapabilityBoundingSet"):
        assert as_root[name] == settings_of(PAUSER)[name], name
    records = [path for path, owner in known_records({}, 0) if owner == 0]
    agent = next(unit for unit in UNITS if unit.name == "gpucommons.service")
    assert default_record({}, 0) in records
    assert default_record({}, 0).parent.name in settings_of(agent)["RuntimeDirectory"][0].split()


def test_a_daemon_of_mps_outlives_the_agent_and_its_pipes_do() -> None:
    given = settings_of(UNITS[0].parent / "mps.conf")
    assert given["KillMode"] == ["process"]
    assert given["RuntimeDirectoryPreserve"] == ["yes"]
    assert given["User"] == ["root"]
    assert {"CAP_SETUID", "CAP_SETGID", "CAP_CHOWN"} <= set(given["CapabilityBoundingSet"][0].split())


def test_the_agent_has_limits_and_is_started_again_at_them() -> None:
    """What it does there: tests/agent/test_unit_limits.py. The pauser would leave programs paused meanwhile."""
    given = settings_of(next(unit for unit in UNITS if unit.name == "gpucommons.service"))
    assert {"MemoryHigh", "MemoryMax", "TasksMax"} <= given.keys()
    assert given["Restart"] == ["on-failure"]
    assert "TasksMax" in settings_of(PAUSER)
    assert "MemoryMax" not in settings_of(PAUSER)


def settings_of(unit: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in unit.read_text().splitlines():
        name, is_setting, value = line.partition("=")
        if is_setting and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def test_the_pauser_is_root_with_three_capabilities_and_leaves_nothing_paused() -> None:
    needs_program("systemd-analyze")
    done = analyze("security", "--offline=true", "--no-pager", "--json=short", str(PAUSER))
    checks = {row["json_field"]: row for row in json.loads(done.stdout)}
    held = {name for name, row in checks.items() if name.startswith("CapabilityBoundingSet") and row["set"] is False}
    # systemd-analyze has one row for DAC_OVERRIDE and its like.
    assert {"CapabilityBoundingSet_CAP_SYS_PTRACE", "CapabilityBoundingSet_CAP_KILL"} <= held
    assert len(held) == 3
    given = settings_of(PAUSER)
    assert given["ExecStopPost"] == ["/opt/gpucommons/bin/gpucommons resume --all"]
    assert given["RuntimeDirectoryPreserve"] == ["yes"], "the record outlives the service"
    assert given["KillMode"] == ["mixed"]
    # It shows every 0.25 s that it goes on, and its own watchdog acts after 2 s.
    assert given["Type"] == ["notify"]
    assert SILENT_S < float(given["WatchdogSec"][0]) < 5
    assert given["WatchdogSignal"] == ["SIGKILL"], "a stopped process takes no other signal"
    (command,) = given["ExecStart"]
    assert f"--listen {SERVICE_SOCKET} --record {SERVICE_RECORD} --allow-user gpucommons" in command
    assert f"/run/{given['RuntimeDirectory'][0]}" == str(SERVICE_SOCKET.parent) == str(SERVICE_RECORD.parent)


@pytest.mark.parametrize("unit", [unit for unit in UNITS if unit != PAUSER], ids=lambda unit: unit.name)
def test_a_unit_has_no_capability_that_it_keeps_and_a_dynamic_user(unit: Path) -> None:
    needs_program("systemd-analyze")
    done = analyze("security", "--offline=true", "--no-pager", "--json=short", str(unit))
    checks = {row["json_field"]: row for row in json.loads(done.stdout)}
    held = [name for name, row in checks.items() if name.startswith("CapabilityBoundingSet") and row["set"] is False]
    assert held == []
    assert checks["UserOrDynamicUser"]["set"] is True
    # What systemd-analyze does not list. The agent gives it up: test_live_systemd.py.
    allowed = ["CAP_PERFMON"] if unit.name == "gpucommons.service" else [""]
    given = settings_of(unit)
    assert given["CapabilityBoundingSet"] == given["AmbientCapabilities"] == allowed


def test_the_agents_unit_makes_the_directories_of_its_sockets() -> None:
    (unit,) = [unit for unit in UNITS if unit.name == "gpucommons.service"]
    found = re.search(r"^RuntimeDirectory=(.+)$", unit.read_text(), re.MULTILINE)
    assert found is not None
    scheduler = load(None, {}, {}).settings.scheduler
    # systemd passes them as RUNTIME_DIRECTORY; the agent's API socket is in the first.
    given = {"RUNTIME_DIRECTORY": ":".join(f"/run/{name}" for name in found.group(1).split())}
    api_socket = parse_unix_address(served_socket("auto", given, uid=61_234)).path
    assert f"unix:{api_socket}" == known_sockets("auto", {})[0], "the commands of every user find it"
    paths = (scheduler.socket, scheduler.xpushare_socket, api_socket)
    assert {Path(path).parent.name for path in paths} <= set(found.group(1).split())
    assert "RuntimeDirectoryMode=0711\n" in unit.read_text()
