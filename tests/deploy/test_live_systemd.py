"""deploy/install.sh under a systemd that runs: the services start, come back, are updated and are removed."""

import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.booted_systemd import BootedSystemd, booted_systemd
from gpucommons import __version__
from gpucommons.scheduler.protocol.wire import CONTROL_ID, MessageType, encode
from waiting import until

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
PYTHON = "/usr/bin/python3"
DEPENDENCIES = "/srv/dependencies"
# The state of a service with a user of its own.
STATE = "/var/lib/private/gpucommons"
SERVICES = ("gpucommons", "gpucommons-pauser")
# The dependencies are those of this environment: the container has no network. What is installed is the wheel.
ENVIRONMENT = {"PYTHON": PYTHON, "PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1", "PYTHONPATH": DEPENDENCIES}


def needs_the_python_of_the_system() -> None:
    """A service runs as a user that sees neither /root nor a Python below it."""
    shown = "import sys, ensurepip, venv; print(*sys.version_info[:2])"
    done = subprocess.run([PYTHON, "-c", shown], capture_output=True, text=True) if shutil.which(PYTHON) else None
    if done is None or done.stdout.split() != [str(number) for number in sys.version_info[:2]]:
        release = ".".join(map(str, sys.version_info[:2]))
        pytest.skip(f"needs {PYTHON} of release {release} with venv (on Debian: python3-venv)")


@pytest.fixture
def inside(tmp_path: Path) -> Iterator[BootedSystemd]:
    needs_the_python_of_the_system()
    dist = tmp_path / "dist"
    script = ROOT / "scripts" / "make_dist.py"
    subprocess.run([sys.executable, script, dist], check=True, capture_output=True, timeout=120)
    binds = {Path(sysconfig.get_paths()["purelib"]): DEPENDENCIES, ROOT / "deploy": "/srv/deploy", dist: "/srv/dist"}
    with booted_systemd(tmp_path, binds, f"PYTHONPATH={DEPENDENCIES}") as booted:
        yield booted


def install(inside: BootedSystemd, *arguments: str) -> str:
    done = inside.run("/srv/deploy/install.sh", *arguments, environment=ENVIRONMENT)
    assert done.returncode == 0, done.stdout + done.stderr + inside.journal()
    return done.stderr


def wheel(inside: BootedSystemd) -> str:
    return inside.output("sh", "-c", "ls /srv/dist/*.whl")


def property_of(inside: BootedSystemd, service: str, name: str) -> str:
    return inside.output("systemctl", "show", "--value", "--property", name, service)


def answers(inside: BootedSystemd) -> bool:
    asked = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:9460/healthz', timeout=5).status)"
    return inside.run(PYTHON, "-c", asked).stdout.strip() == "200"


def served(inside: BootedSystemd, path: str) -> str:
    asked = f"import urllib.request as r; print(r.urlopen('http://127.0.0.1:9460{path}', timeout=5).read().decode())"
    return inside.run(PYTHON, "-c", asked).stdout


REFUSED = r'gpucommons_sharing_refusals_total\{reason="control_not_admin"\} (\d+)'
SEND = """
import socket, sys
peer = socket.socket(socket.AF_UNIX)
peer.connect("/run/nvshare/scheduler.sock")
peer.sendall(bytes.fromhex(sys.argv[1]))
"""


def orders(inside: BootedSystemd, *prefix: str) -> int:
    """Sends ten orders while the agent is stopped; how many of them it carries out afterwards."""
    frame = encode(2, MessageType.SCHED_OFF, id=CONTROL_ID).hex()
    agent, before = property_of(inside, "gpucommons", "MainPID"), decided(inside)
    inside.output("kill", "-STOP", agent)
    for _ in range(10):
        inside.output(*prefix, PYTHON, "-c", SEND, frame)
    inside.output("kill", "-CONT", agent)
    until(lambda: sum(decided(inside)) >= sum(before) + 10, "the orders are decided", within_s=60)
    return decided(inside)[0] - before[0]


def decided(inside: BootedSystemd) -> tuple[int, int]:
    """How many orders were obeyed, and how many refused."""
    log = inside.run("journalctl", "--no-pager", "--unit=gpucommons").stdout
    refused = re.search(REFUSED, served(inside, "/metrics/gpucommons"))
    return log.count("SCHED_OFF by uid 0"), 0 if refused is None else int(refused[1])


def active(inside: BootedSystemd) -> list[str]:
    return [property_of(inside, service, "ActiveState") for service in SERVICES]


def test_install_restart_update_and_uninstall(inside: BootedSystemd) -> None:
    said = install(inside, "--share", "--source", wheel(inside))
    assert f"installed gpucommons {__version__} " in said
    until(lambda: answers(inside), "the agent answers", within_s=60)
    assert active(inside) == ["active", "active"]
    assert [property_of(inside, service, "UnitFileState") for service in SERVICES] == ["enabled", "enabled"]

    # The agent runs as a user of its own, without capabilities, and serves every user of the node.
    first = property_of(inside, "gpucommons", "MainPID")
    status = dict(
        line.split(":\t", 1) for line in inside.output("cat", f"/proc/{first}/status").splitlines() if ":\t" in line
    )
    assert status["Uid"].split()[0] != "0"
    assert [int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")] == [0] * 4
    program = inside.output("gpucommons", "--version", environment=ENVIRONMENT)
    assert program.startswith(f"gpucommons {__version__} ")
    assert "no request waits" in inside.output("gpucommons", "queue", environment=ENVIRONMENT)
    assert inside.run("test", "-S", "/run/gpucommons-pauser/pauser.sock").returncode == 0

    # Its system call filter lets it read the state of the clock.
    timex = 'node_scrape_collector_success{collector="timex"} '
    until(lambda: timex in served(inside, "/metrics/nodeexporter"), "the clock is read", within_s=60)
    until(lambda: f"{timex}1" in served(inside, "/metrics/nodeexporter"), "reading it succeeds", within_s=20)

    # systemd starts it again.
    inside.output("kill", "-KILL", first)
    until(lambda: property_of(inside, "gpucommons", "MainPID") not in ("0", first), "it is started again", within_s=60)
    until(lambda: answers(inside), "the agent answers again", within_s=60)

    # An update restarts it, and keeps configuration, sharing and data.
    inside.output("touch", f"{STATE}/kept")
    inside.output("sh", "-c", "echo '[privacy]\nshow_owners = \"own\"' >/etc/gpucommons/gpucommons.toml")
    second = property_of(inside, "gpucommons", "MainPID")
    install(inside, "--source", wheel(inside))
    assert property_of(inside, "gpucommons", "MainPID") != second
    until(lambda: answers(inside), "the agent answers after the update", within_s=60)
    assert active(inside) == ["active", "active"]
    assert "own" in inside.output("cat", "/etc/gpucommons/gpucommons.toml")
    assert inside.run("test", "-e", f"{STATE}/kept").returncode == 0

    install(inside, "--uninstall")
    assert active(inside) == ["inactive", "inactive"]
    assert inside.run("sh", "-c", "ls -d /opt/gpucommons /etc/systemd/system/gpucommons*").stdout == ""
    assert inside.run("pgrep", "-f", "/opt/gpucommons").stdout == ""
    assert inside.run("test", "-e", f"{STATE}/kept").returncode == 0, "the data stays"
    install(inside, "--uninstall", "--purge")
    assert inside.run("sh", "-c", f"ls -d /etc/gpucommons {STATE}").stdout == ""
    failed = inside.output("systemctl", "list-units", "--failed", "--plain", "--no-legend", "gpucommons*")
    assert failed == ""


def test_the_service_obeys_root_that_is_gone_and_no_other(inside: BootedSystemd) -> None:
    """It has the record of starts, which its capability was for."""
    inside.output("mkdir", "-p", "/etc/gpucommons")
    inside.output("sh", "-c", "echo '[scheduler]\nenabled = true' >/etc/gpucommons/gpucommons.toml")
    install(inside, "--source", wheel(inside))
    until(lambda: answers(inside), "the agent answers", within_s=60)
    assert orders(inside, "unshare", "--pid", "--fork") == 0
    assert orders(inside) == 10
