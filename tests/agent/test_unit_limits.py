"""The limits of the shipped unit, MemoryMax and TasksMax: the agent in a control group that has reached them."""

import base64
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import bcrypt
import pytest

from adversary.on_disk import assert_layers_agree
from gpucommons.leases.protocol import LeaseConnection
from needs import needs_root
from running import running_agent
from waiting import until, until_removed

MEMORY_MAX = {True: "memory.max", False: "memory.limit_in_bytes"}
MEMORY_NOW = {True: "memory.current", False: "memory.usage_in_bytes"}


@contextmanager
def control_group(controller: str) -> Iterator[tuple[Path, bool]]:
    """A new group with this controller, and whether it is one of cgroup v2."""
    needs_root()
    parent, is_v2 = _place_of(controller)
    path = parent / f"gpucommons-{secrets.token_hex(8)}"
    path.mkdir()
    try:
        yield path, is_v2
    finally:
        for pid in (path / "cgroup.procs").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
        until_removed(path)


def _place_of(controller: str) -> tuple[Path, bool]:
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, options, *_ = line.split()
        path = Path(place)
        if kind == "cgroup" and controller in options.split(",") and os.access(path, os.W_OK):
            return path, False
        if kind == "cgroup2" and controller in (path / "cgroup.controllers").read_text().split():
            try:
                (path / "cgroup.subtree_control").write_text(f"+{controller}")
            except OSError:
                continue
            return path, True
    pytest.skip(f"needs a control group with the controller {controller}")


def joining(group: Path) -> tuple[str, ...]:
    return ("sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh")


# In the same group, and not the one that the kernel ends: it stands for whatever made the agent grow.
BALLAST = """
import time
open("/proc/self/oom_score_adj", "w").write("-1000")
kept = []
while True:
    kept.append(b"x" * 4_000_000)
    time.sleep(0.02)
"""


@pytest.mark.long
def test_at_its_memory_limit_it_is_killed_and_the_next_one_continues(tmp_path: Path) -> None:
    lease_socket, ledger = tmp_path / "leases.sock", tmp_path / "ledger-lab.sqlite"
    environment = {
        "STATE_DIRECTORY": str(tmp_path),
        "GPUCOMMONS_LEASES_SOCKET": str(lease_socket),
        "GPUCOMMONS_LEDGER_FLUSH_S": "1",
    }
    with control_group("memory") as (group, is_v2):
        with (
            running_agent("--simulate", "lab", environment=environment, prefix=joining(group)) as agent,
            LeaseConnection([lease_socket]) as connection,
        ):
            connection.send({"request": "run"})
            queued, granted = (connection.receive(20) or {} for _ in range(2))
            until(lambda: str(granted["id"]) in (tmp_path / "leases-lab.json").read_text(), "it is recorded")
            until(ledger.exists, "a ledger")
            now_bytes = int((group / MEMORY_NOW[is_v2]).read_text())
            (group / MEMORY_MAX[is_v2]).write_text(str(now_bytes + 32_000_000))
            ballast = subprocess.Popen([*joining(group), sys.executable, "-c", BALLAST])
            try:
                assert agent.process.wait(60) == -signal.SIGKILL, "the kernel ended it, and not itself"
            finally:
                ballast.kill()
                ballast.wait()
        (group / MEMORY_MAX[is_v2]).write_text(str(1 << 30))
        assert_layers_agree(ledger)
        with (
            running_agent("--simulate", "lab", environment=environment, prefix=joining(group)) as agent,
            LeaseConnection([lease_socket]) as connection,
        ):
            connection.send({"request": "resume", "id": queued["id"], "token": queued["token"]})
            again = connection.receive(20) or {}
            assert (again["event"], again["slots"]) == ("granted", granted["slots"])
            assert not [line for line in agent.lines if "error" in line.lower()]
        assert_layers_agree(ledger)


@pytest.mark.long
def test_at_its_task_limit_what_needs_a_thread_is_refused_and_the_rest_is_served(tmp_path: Path) -> None:
    hashed = bcrypt.hashpw(b"secret", bcrypt.gensalt(rounds=4)).decode()
    web_config = tmp_path / "web.yml"
    web_config.write_text(f"basic_auth_users: {{prometheus: {hashed}}}\n")

    def login(password: str) -> dict[str, str]:
        return {"Authorization": "Basic " + base64.b64encode(f"prometheus:{password}".encode()).decode()}

    with control_group("pids") as (group, _):
        options = ("--simulate", "lab", "--web.config.file", str(web_config))
        with running_agent(*options, prefix=joining(group)) as agent:
            until(lambda: agent.get("/metrics", login("secret"))[0] == 200, "the password is remembered")
            until(lambda: agent.get("/metrics", login("wrong"))[0] == 401, "another one is checked, on a thread")
            # No thread can be started from now on.
            (group / "pids.max").write_text("1")
            assert [agent.get("/metrics", login("secret"))[0] for _ in range(10)] == [200] * 10
            assert [agent.get("/metrics", login(f"guess {number}"))[0] for number in range(5)] == [503] * 5
            assert agent.get("/healthz", login("secret"))[0] == 200
            warning = "the web configuration cannot be checked for changes"
            until(lambda: any(warning in line for line in agent.lines), "the task that needs a thread says so")
            (group / "pids.max").write_text("max")
            until(lambda: agent.get("/metrics", login("another guess"))[0] == 401, "threads are started again")
            assert not [line for line in agent.lines if "Traceback" in line]
            assert agent.process.poll() is None
