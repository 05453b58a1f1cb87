"""`gpucommons up --simulate lab --share`: the real scheduler and lease service with simulated programs, tried as a user
would. No process of this machine is touched."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from gpucommons.simulation.lab_jobs import JOBS
from gpucommons.simulation.lab_people import RUNS
from needs import needs_program, needs_root
from parsing import parsed
from running import RunningAgent, command, command_process, running_agent
from waiting import until

SHARED = ("--simulate", "lab", "--share", "--interval", "0.5")
# The notebook is parked as soon as it was idle for this long.
PARKING = "[parking]\nidle_after_s = 3\neager = true\nmin_residence_s = 3\n"
FINETUNE, NOTEBOOK, FORGOTTEN = (JOBS[number].key.pid for number in (4, 5, 3))


# Root sees the names of holders.
EXPLAINED = re.compile(
    r"^request \S+ \(mine\) has been waiting for [^:]+: GPU \S+ is held by (?!another user).+; "
    r"\d+ more that fit are in use; place \d+ of \d+; behind request \S+ of \w+",
    re.MULTILINE,
)


class Lab:
    """A shared lab, and commands that find it as on a user's machine. `prefix` starts them where they need one."""

    def __init__(self, agent: RunningAgent, environment: dict[str, str], prefix: tuple[str, ...] = ()) -> None:
        self.agent = agent
        self.environment = environment
        self.prefix = prefix

    def command(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        if self.prefix:
            return command_process(*arguments, environment=self.environment, prefix=self.prefix)
        start = command_process if arguments[0] == "run" else command
        return start(*arguments, environment=self.environment)

    def document(self, *arguments: str) -> Any:
        done = self.command(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def turns(self) -> Any:
        return self.document("scheduler", "status")["turns"]

    def way(self, index: int) -> str | None:
        return next((gpu["way"] for gpu in self.turns()["gpus"].values() if gpu["index"] == index), None)

    def gains(self) -> dict[str, float]:
        metrics = parsed(self.agent.get("/metrics")[1])
        found = [(dict(labels), value) for (name, labels), value in metrics.items() if "sharing_gain_ratio" in name]
        return {labels["gpu"]: value for labels, value in found}

    def memory_used(self, index: int) -> int:
        gpus = self.document("gpus")["gpus"]["by_uuid"].values()
        return next(int(gpu["memory_used_bytes"]) for gpu in gpus if gpu["index"] == index)

    def client(self, pid: int) -> Any:
        return next((each for each in self.turns()["clients"].values() if each["pid"] == pid), None)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    directory = tmp_path_factory.mktemp("shared_lab")
    config = directory / "gpucommons.toml"
    own = {"ledger": directory / "own.sqlite", "events": directory / "own.jsonl"}
    config.write_text(
        f'{PARKING}[ledger]\nfile = "{own["ledger"]}"\nflush_s = 1\n[events]\nown_file = "{own["events"]}"\n'
    )
    environment = {
        "RUNTIME_DIRECTORY": str(directory),
        "STATE_DIRECTORY": str(directory),
        "GPUCOMMONS_LEASES_SOCKET": str(directory / "leases.sock"),
        "GPUCOMMONS_SCHEDULER_SOCKET": str(directory / "nvshare" / "scheduler.sock"),
    }
    with running_agent(*SHARED, "--config", str(config), environment=environment) as agent:
        yield Lab(agent, environment)
        assert agent.stop() == 0, agent.lines
    assert not (directory / "nvshare").exists(), "no client of this machine may mistake it for a real scheduler"
    found = {path.name for path in directory.glob("*-lab*")}
    assert found == {"leases-lab.json", "idle-lab.json"}, "the settings name the other files"
    assert all(path.stat().st_size for path in own.values())


@pytest.mark.long
def test_programs_take_measured_turns(lab: Lab) -> None:
    until(lambda: lab.way(4) == "turns", "the dense pair takes turns")
    until(lambda: min(lab.client(pid)["turns_total"] for pid in (FINETUNE, NOTEBOOK)) > 5, "both have turns")
    text = lab.command("scheduler", "status").stdout
    assert "bob · finetune.py" in text
    assert "gain over the driver's time-slicing" in text
    explained = lab.command("scheduler", "explain", f"pid:{FINETUNE}").stdout
    assert "on GPU 4" in explained
    until(lambda: lab.gains().get("4", 0.0) > 1.02, "the metric shows the gain")


def test_orders_reach_the_simulated_scheduler(lab: Lab) -> None:
    training = JOBS[0].key.pid
    until(lambda: lab.client(training), "the training takes turns")
    done = lab.command("scheduler", "set-limit", "container:train-vit", "--core", "50")
    assert (done.returncode, done.stdout) == (0, "container:train-vit is limited; 1 connected client updated\n"), (
        done.stderr
    )
    until(lambda: lab.client(training)["core_quota_percent"] == 50)
    turns = lab.client(training)["turns_total"]
    until(lambda: lab.client(training)["turns_total"] > turns + 2, "a lone program is paused by its quota")
    assert lab.command("scheduler", "set-limit", "container:train-vit", "--clear").returncode == 0


@pytest.mark.long
def test_simulated_users_hold_leases_and_wait_and_a_real_command_gets_its_place(lab: Lab) -> None:
    queue = until(lambda: found if (found := lab.document("queue"))["waiting"] else None, "some wait")
    everyone = [*queue["leases"].values(), *queue["waiting"].values()]
    assert {each["name"] for each in everyone} <= {run.name for run in RUNS}
    assert all(each["name"].endswith("(simulated)") for each in everyone)
    assert sum(not each["shared"] for each in queue["leases"].values()) == 3, "the three free MIG devices"

    shared = lab.command("run", "--share", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    assert shared.returncode == 0
    assert shared.stdout.startswith("MIG-"), shared.stderr

    # Several: on a slow machine the first has its GPU before it is explained.
    waiting = [
        subprocess.Popen(
            [sys.executable, "-m", "gpucommons", "run", "--quiet", "--name", "mine", "sleep", "600"],
            env={**psutil.Process().environ(), "PYTHONPATH": ":".join(filter(None, sys.path)), **lab.environment},
        )
        for _ in range(3)
    ]
    try:
        mine = until(
            lambda: next((one for one in lab.document("queue")["waiting"].values() if one["name"] == "mine"), None)
        )
        assert mine["position"] > 1, "simulated users wait before it"
        # The next snapshot has it.
        until(lambda: EXPLAINED.search(lab.command("why").stdout), "it is explained")
    finally:
        for one in waiting:
            one.send_signal(signal.SIGINT)
        for one in waiting:
            one.wait(20)


@pytest.mark.long
def test_an_idle_notebook_is_parked_and_wakes(lab: Lab) -> None:
    def rows() -> list[Any]:
        return [one for one in lab.document("parked")["parking"]["programs"].values() if one["stage"] == "parked"]

    (row,) = until(rows, "it is in host memory", within_s=60)
    assert (row["processes"], row["cause"]) == ([FORGOTTEN], "idle")
    until(lambda: lab.memory_used(3) == 0, "its memory is free")
    done = lab.command("wake", str(FORGOTTEN))
    assert (done.returncode, "is back on the GPU" in done.stdout) == (0, True), done.stderr


VICTIM = """
import os, signal, time
signal.signal(signal.SIGCONT, lambda *_: print("continued", flush=True))
while True:
    print(os.getpid(), flush=True)
    time.sleep(0.02)
"""
# The first process of a pid namespace becomes the agent; before that it starts one with the pid of a simulated program.
NEIGHBOUR = 'echo "$1" > /proc/sys/kernel/ns_last_pid && { "$2" -c "$3" > "$4" & } && shift 4 && exec "$@"'


@pytest.mark.long
def test_a_real_process_with_the_pid_of_a_simulated_program_is_not_touched(tmp_path: Path) -> None:
    needs_root()
    needs_program("unshare")
    needs_program("nsenter")
    beats = tmp_path / "beats"
    namespace = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", NEIGHBOUR, "sh")
    prefix = (*namespace, str(FINETUNE - 1), sys.executable, VICTIM, str(beats))
    config = tmp_path / "gpucommons.toml"
    config.write_text(PARKING)
    environment = {"RUNTIME_DIRECTORY": str(tmp_path), "STATE_DIRECTORY": str(tmp_path)}
    environment["GPUCOMMONS_SCHEDULER_SOCKET"] = str(tmp_path / "scheduler.sock")
    with running_agent(*SHARED, "--config", str(config), environment=environment, prefix=prefix) as agent:
        # From outside of the namespace, as from a container, no names and pids are seen.
        (first,) = psutil.Process(agent.process.pid).children()
        lab = Lab(agent, environment, ("nsenter", "--target", str(first.pid), "--pid", "--mount"))
        until(
            lambda: (lab.client(FINETUNE) or {"turns_total": 0})["turns_total"] > 10,
            "the simulated program takes turns",
        )
        until(lambda: lab.document("parked")["parking"]["programs"], "a simulated program is parked")
        lines = beats.read_text().split()
        assert set(lines) == {str(FINETUNE)}, "it has this pid, and was never continued after a stop"
        until(lambda: len(beats.read_text().split()) > len(lines) + 10, "it runs")
        children = psutil.Process(agent.process.pid).children(recursive=True)
        commands = [" ".join(child.cmdline()) for child in children]
        assert not [line for line in commands if "gpucommons.pauser" in line], "there is no pauser process"
        for child in children:
            assert "libcuda" not in Path(f"/proc/{child.pid}/maps").read_text()
        agent.process.send_signal(signal.SIGKILL)
    assert not (tmp_path / "paused").exists()
