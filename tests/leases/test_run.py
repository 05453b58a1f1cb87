"""`gpucommons run` and the commands of the queue with a real agent that simulates the lab."""

import fcntl
import json
import os
import pty
import pwd
import re
import select
import shlex
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpucommons.cli.run import default_name
from gpucommons.leases.protocol import LeaseConnection, LeaseServiceGone, answer_of
from running import RunningAgent, command, running_agent
from waiting import until

ME = pwd.getpwuid(os.getuid()).pw_name

# The agent takes a sample five times a second, so that a freed slot is seen soon.
FAST = ("--simulate", "lab", "--interval", "0.2")
SMALL = ("--memory", "10G")


class Lab:
    """An agent that can be restarted, and commands that use its socket."""

    def __init__(self, directory: Path) -> None:
        (directory / "state").mkdir()
        self.socket = directory / "leases.sock"
        self.environment = {
            "STATE_DIRECTORY": str(directory / "state"),
            "GPUCOMMONS_LEASES_SOCKET": str(self.socket),
        }
        self.started: list[subprocess.Popen[str]] = []

    def record(self) -> str:
        return (Path(self.environment["STATE_DIRECTORY"]) / "leases-lab.json").read_text()

    @contextmanager
    def agent(self, *arguments: str) -> Iterator[RunningAgent]:
        with running_agent(*FAST, *arguments, environment=self.environment) as agent:
            until(lambda: self.queue()["off"] is None, "leases are given")
            yield agent

    def start(self, *arguments: str, **options: Any) -> "subprocess.Popen[str]":
        return self.start_program(sys.executable, "-m", "gpucommons", *arguments, **options)

    def start_program(self, *program: str, **options: Any) -> "subprocess.Popen[str]":
        given: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        process = subprocess.Popen(
            program,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **self.environment},
            **given,
        )
        self.started.append(process)
        return process

    def command(self, *arguments: str) -> tuple[int, str, str]:
        done = command(*arguments, environment=self.environment)
        return done.returncode, done.stdout, done.stderr

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """`gpucommons run` in a process of its own, as it starts one."""
        process = self.start("run", *arguments)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def run_quietly(self, *arguments: str) -> tuple[int, str, str]:
        return self.run("--quiet", *arguments)

    def ask(self, **request: object) -> Any:
        return answer_of([self.socket], request).get("answer")

    def queue(self) -> dict[str, Any]:
        try:
            return dict(self.ask(request="queue"))
        except LeaseServiceGone:
            return {"off": "no agent", "leases": {}, "waiting": {}}

    def leases(self) -> dict[str, Any]:
        return dict(self.queue()["leases"])

    def hold(self, processes: int) -> list["subprocess.Popen[str]"]:
        """Commands that run until their standard input is closed."""
        holders = [self.start("run", "--quiet", "cat", stdin=subprocess.PIPE) for _ in range(processes)]
        until(lambda: len(self.leases()) >= processes, "they run")
        return holders

    def fill(self) -> ExitStack:
        """Leases on all slots that are left, until the result is closed."""
        held = ExitStack()
        while True:
            connection = held.enter_context(LeaseConnection([self.socket]))
            connection.send({"request": "run", "wait": False})
            lines = [connection.receive(10) or {} for _ in range(2)]
            if lines[-1].get("event") != "granted":
                return held


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path)
    yield lab
    for process in lab.started:
        if process.poll() is None:
            process.kill()
        process.wait()


def test_a_command_gets_a_slot_by_uuid_and_its_exit_status_is_kept(lab: Lab) -> None:
    with lab.agent() as agent:
        status, out, err = lab.run(*SMALL, "sh", "-c", "echo $CUDA_VISIBLE_DEVICES; sleep 0.5; exit 7")
        assert (status, err.count("SIMULATED")) == (7, 1)
        slots = json.loads(agent.get("/api/v1/allocations")[1])["allocations"]["slots"]
        assert out.strip() in slots
        assert "waited" in err
        assert "GPU-hours" in err
        assert lab.run_quietly(*SMALL, "sh", "-c", "kill -TERM $$")[0] == 128 + signal.SIGTERM
        assert lab.run_quietly(*SMALL, "--", "echo", "--gpus", "3")[1] == "--gpus 3\n"
        assert lab.run_quietly(*SMALL, "--for", "1s", "sleep", "60")[0] == 124
        assert lab.leases() == {}


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("--gpus", "9", "true"), 2, "9 GPUs requested, this node has 6 GPUs and 11 MIG devices"),
        (("--memory", "20Q", "true"), 2, "--memory: invalid amount of memory '20Q'"),
        (("--memory", "900G", "true"), 2, "0 of this node have that much"),
        (("--memory", "20", "true"), 2, "--memory: '20' is 20 bytes: add a unit, such as 20G for 20 GB"),
        (("--model", "a100", "true"), 2, "this node has no GPU of model 'a100'; it has NVIDIA H200"),
        (("--gpu", "9", "true"), 2, "this node has no GPU '9'; see 'gpucommons gpus'"),
        (
            ("--gpu", "6", "--whole", "true"),
            2,
            "1 GPU named '6' without MIG requested, this node has 6 GPUs and 11 MIG",
        ),
        (("--gpu", "0", "--no-wait", "true"), 75, "no slot is free now: GPU 0 is held by alice"),
        (("--whole", "--model", "h200", "--no-wait", "true"), 75, "no slot is free now: GPU "),
        (("--for", "2 fortnights", "true"), 2, "--for: invalid duration '2 fortnights'"),
        (("--max-wait", "soon", "true"), 2, "--max-wait: invalid duration 'soon'"),
        (("--gpus", "0", "true"), 2, "--gpus"),
        ((), 2, "Missing argument 'COMMAND...'"),
        (("",), 2, "the command is empty"),
        (("no-such-command",), 127, "no-such-command: command not found"),
        (("/etc/passwd",), 126, "/etc/passwd: not executable"),
        (("--gpus", "6", "--no-wait", "true"), 75, "no slot is free now"),
        (("--gpus", "6", "--max-wait", "1s", "true"), 75, "--max-wait"),
    ],
)
def test_what_cannot_be_done_fails_with_the_reason(
    shared_lab: Lab, arguments: tuple[str, ...], status: int, words: str
) -> None:
    found, out, err = shared_lab.run_quietly(*arguments)
    assert (found, out) == (status, "")
    assert words in err
    assert err.count("\n") <= 2


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (("python3", "/home/alice/train.py", "--password=hunter2"), "python3 train.py"),
        (("/usr/bin/python3", "-u", "train.py", "secret.py"), "python3 train.py"),
        (("python", "-m", "torch.distributed.run", "--token", "x"), "python -m torch.distributed.run"),
        (("torchrun", "--nproc", "8", "train.py"), "torchrun train.py"),
        (("bash", "-c", "TOKEN=x run.sh"), "bash"),
        (("./fit", "--key", "abc"), "fit"),
        (("env", "TOKEN=abc", "python", "train.py"), "env train.py"),
        (("curl", "https://user:password@host/x"), "curl"),
    ],
)
def test_the_default_name_publishes_no_argument(command: tuple[str, ...], name: str) -> None:
    assert default_name(command) == name


@pytest.mark.long
def test_a_command_may_name_its_gpu_and_the_model_and_sees_its_quota(lab: Lab) -> None:
    lab.environment |= {"RUNTIME_DIRECTORY": str(lab.socket.parent), "GPUCOMMONS_WEB_LISTEN": ""}
    config = lab.socket.parent / "gpucommons.toml"
    config.write_text('[lease_quotas]\neach = { user = "*", gpus = 3, hours = 100 }\n')
    with lab.agent("--config", str(config)) as agent:
        slots = json.loads(agent.get("/api/v1/slots")[1])["slots"]
        uuids = {slot["slot"]: uuid for uuid, slot in slots.items()}
        for chosen, expected in (
            (("--gpu", "7.4"), ("7.4",)),
            (("--gpu", uuids["7.5"]), ("7.5",)),
            (("--gpu", "7", "--model", "H200", *SMALL), ("7.3", "7.4", "7.5")),
        ):
            status, out, err = lab.run_quietly(*chosen, "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
            assert (status, out.strip() in {uuids[slot] for slot in expected}) == (0, True), (chosen, out, err)
        # The last reading may be from before the last lease ended.
        quota = r"quota of leases: (each user|user \w+): 0 of 3 GPUs; \S+ of 100 GPU-hours in 30 days"
        until(lambda: any(re.fullmatch(quota, line) for line in lab.command("me")[1].splitlines()), "its quota")
        assert lab.run_quietly("--gpus", "4", "true")[0] == 2, "more than the quota"


@pytest.mark.long
def test_a_lease_is_named_by_program_and_script(shared_lab: Lab) -> None:
    process = shared_lab.start(
        "run", "--quiet", *SMALL, "--for", "2h", "sh", "-c", "cat; true --password=hunter2", stdin=subprocess.PIPE
    )
    try:
        until(shared_lab.leases, "it runs")
        header, row = shared_lab.command("queue")[1].splitlines()[:2]
        assert " ENDS" in header
        assert re.search(r" in (2 h|1 h 59 min)\b", row), row
        assert [lease["name"] for lease in shared_lab.leases().values()] == ["sh"]
        named = shared_lab.run_quietly("--name", "my training", *SMALL, "true")
        assert named[0] == 0
    finally:
        process.communicate("", timeout=30)


@pytest.fixture(scope="module")
def shared_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    lab = Lab(tmp_path_factory.mktemp("lab"))
    with lab.agent():
        yield lab


def test_the_slots_of_a_killed_run_are_free_again_and_its_command_ends(shared_lab: Lab, tmp_path: Path) -> None:
    lab = shared_lab
    pid_file = tmp_path / "pid"
    victim = lab.start("run", *SMALL, "sh", "-c", f"echo $$ > {pid_file}; exec sleep 600")
    until(lambda: pid_file.exists() and pid_file.read_text().strip(), "the command runs")
    assert [lease["name"][:2] for lease in lab.leases().values()] == ["sh"]
    killed_s = time.monotonic()
    victim.kill()
    until(lambda: not lab.leases(), "the lease is over", within_s=5)
    pid = int(pid_file.read_text())
    until(lambda: not Path(f"/proc/{pid}").exists() or _is_zombie(pid), "the command has ended")
    assert time.monotonic() - killed_s < 30


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.long
def test_signals_reach_the_command_and_an_interrupt_leaves_the_queue(shared_lab: Lab) -> None:
    lab = shared_lab
    trap = "trap 'echo got it; exit 5' USR1; echo ready; while :; do sleep 0.05; done"
    runner = lab.start("run", "--quiet", *SMALL, "sh", "-c", trap)
    assert runner.stdout is not None
    assert runner.stdout.readline() == "ready\n"
    runner.send_signal(signal.SIGUSR1)
    assert runner.communicate(timeout=30)[0] == "got it\n"
    assert runner.returncode == 5
    waiter = lab.start("run", "--gpus", "6", "true")
    until(lambda: lab.queue()["waiting"], "it waits")
    waiter.send_signal(signal.SIGINT)
    _, err = waiter.communicate(timeout=30)
    assert waiter.returncode == 130
    assert "left the queue" in err
    assert lab.queue()["waiting"] == {}


def test_the_next_in_line_runs_when_a_slot_is_free_and_cancel_ends_both(shared_lab: Lab) -> None:
    lab = shared_lab
    (holder,) = lab.hold(1)
    (lease,) = lab.leases()
    with lab.fill():
        waiters = [lab.start("run", "--quiet", "--name", f"waiter {n}", "true") for n in range(2)]
        until(lambda: len(lab.queue()["waiting"]) == 2, "two wait")
        first, second = lab.queue()["waiting"]
        status, out, _ = lab.command("cancel", second)
        assert (status, out) == (0, f"request {second} of {ME} is cancelled\n")
        (row,) = lab.queue()["waiting"].values()
        assert (row["cause"], len(row["blockers"])) == ("busy", 17), "each GPU and MIG device, with or without a lease"
        assert lab.command("queue")[1].count(" is held by ") == 1
        assert lab.command("cancel", lease, "--json")[0] == 0
        until(lambda: all(waiter.poll() is not None for waiter in waiters), "both have ended")
        assert sorted(waiter.returncode for waiter in waiters) == [0, 75]
        assert first not in lab.queue()["waiting"]
        assert holder.wait(30) == 128 + signal.SIGTERM
    until(lambda: not lab.leases(), "all leases are over")
    assert lab.command("cancel", "99999")[0] == 1


def test_reservations_are_made_shown_and_removed(shared_lab: Lab) -> None:
    lab = shared_lab
    status, out, _ = lab.command("reserve", "--gpus", "2", "--from", "tomorrow 9:00", "--for", "8h", "--json")
    made = json.loads(out)
    assert (status, made["gpus"], made["until_unix_s"] - made["from_unix_s"]) == (0, 2, 8 * 3600)
    assert made["id"] in lab.command("reservations")[1]
    listed = json.loads(lab.command("reservations", "--json")[1])
    shared = made.keys() - {"id", "held_beyond"}
    assert {name: listed[made["id"]][name] for name in shared} == {name: made[name] for name in shared}, (
        "the same names and values"
    )
    assert lab.command("reserve", "--gpus", "5", "--from", "tomorrow 10:00", "--for", "1h")[0] == 2
    assert lab.command("reserve", "--from", "2020-01-01 9:00", "--for", "1h")[0] == 2
    assert lab.command("unreserve", made["id"])[0] == 0
    assert lab.command("unreserve", made["id"])[0] == 1
    assert lab.command("reservations")[1] == "no reservations\n"


@pytest.mark.long
def test_a_reservation_of_a_slot_that_is_held_says_so_until_it_is_free(shared_lab: Lab) -> None:
    """All whole GPUs of the lab are held by programs without a lease."""
    lab = shared_lab
    status, out, err = lab.command("reserve", "--for", "1h")
    assert (status, err) == (0, "")
    made, held, moves, then = out.splitlines()
    (id, slot) = re.findall(r"^reservation (r\d+): GPU (\d) from ", made)[0]
    assert re.fullmatch(rf"note: GPU {slot} is held by \w+(, idle for .*)?", held)
    assert moves == "note: where that is so at its start, the reservation moves to a GPU that is free, or waits."
    assert then == "At that time start your command with 'gpucommons run': it gets a reserved GPU."
    until(lambda: lab.queue()["reservations"][id]["held"], "the reservation is in force")
    assert re.search(rf"^{id} .* held by others$", lab.command("reservations")[1], re.MULTILINE)
    assert lab.command("unreserve", id)[0] == 0
    later = json.loads(lab.command("reserve", "--from", "in 2h", "--for", "1h", "--json")[1])
    assert [sentence.partition(" is held by ")[0] for sentence in later["held_beyond"]] == [f"GPU {later['slots'][0]}"]
    assert re.search(rf"^{later['id']} .* to come$", lab.command("reservations")[1], re.MULTILINE)
    assert lab.command("unreserve", later["id"])[0] == 0


@pytest.mark.long
def test_the_report_equals_the_accounts_of_the_job(lab: Lab) -> None:
    lab.environment |= {"GPUCOMMONS_ACCOUNTS_PRICE_PER_GPU_HOUR": "*H200*=3", "GPUCOMMONS_ACCOUNTS_CURRENCY": "EUR"}
    with lab.agent() as agent, LeaseConnection([lab.socket]) as connection:
        connection.send({"request": "run", "memory_bytes": 10 * 10**9})
        granted = [connection.receive(10) or {} for _ in range(2)][-1]
        job = f"lease-{granted['id']}"
        until(lambda: job in agent.get("/api/v1/allocations")[1], "the lease holds its slot")
        time.sleep(1)
        connection.send({"request": "done", "report": True})
        at_the_end: Any = (connection.receive(10) or {})["job"]
        by_the_agent = json.loads(lab.command("report", "--job", job, "--json", "--connect", agent.url)[1])["job"]
        jobs = json.loads(lab.command("report", "--by", "job", "--json", "--connect", agent.url)[1])
        mine = lab.command("me", "--connect", agent.url)[1]
        agent.stop()
    assert at_the_end == by_the_agent
    assert at_the_end["total"] == jobs["accounts"]["30d"]["jobs"][job]
    assert at_the_end["total"]["held_gpu_hours"] > 1 / 3600
    # Both are rounded to six decimals: three times half a unit, and half a unit of the cost itself.
    assert at_the_end["total"]["cost"] == pytest.approx(3 * at_the_end["total"]["gpu_equivalent_hours"], abs=2.1e-6)
    assert at_the_end["asked_memory_bytes"] == 10 * 10**9
    assert at_the_end["waited_s"] is not None
    assert " idle, cost 0.00 EUR" in mine
    # The ledger file, without an agent.
    lonely = ("--simulate", "lab")
    status, out, _ = lab.command("report", "--by", "job", "--format", "json", *lonely)
    assert json.loads(out)["accounts"]["30d"]["jobs"][job] == at_the_end["total"]
    status, out, _ = lab.command("report", "--job", job, *lonely)
    assert status == 0
    title, figures = out.splitlines()
    assert title.startswith(f"{job} of ")
    assert f"{at_the_end['total']['held_gpu_hours']:.3f} GPU-hours, " in figures
    assert " GB of 10 GB asked" in figures
    assert " EUR" in figures
    status, out, err = lab.command("report", "--job", "lease-999", *lonely)
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert "no job 'lease-999' in the ledger" in err


@pytest.mark.long
def test_a_cancelled_command_has_its_report(lab: Lab) -> None:
    with lab.agent() as agent:
        process = lab.start("run", *SMALL, "sleep", "600")
        until(lab.leases, "it runs")
        (id,) = lab.leases()
        until(lambda: '"held_gpu_hours"' in agent.get(f"/api/v1/job?id=lease-{id}")[1], "it is billed")
        lab.ask(request="cancel", id=id)
        err = process.communicate(timeout=60)[1]
    assert "the lease was cancelled by its user" in err
    assert " GPU-hours, " in err


@pytest.mark.long
def test_without_a_ledger_the_report_says_so(lab: Lab) -> None:
    lab.environment["GPUCOMMONS_LEDGER_ENABLED"] = "false"
    with lab.agent():
        status, _, err = lab.run(*SMALL, "true")
    assert status == 0
    assert "its figures are not known: no ledger is kept ([ledger] enabled)" in err


@pytest.mark.long
def test_the_report_is_complete_after_an_agent_restart(lab: Lab) -> None:
    def held(agent: RunningAgent, job: str) -> float:
        document = json.loads(agent.get(f"/api/v1/job?id={job}")[1])["job"]
        return 0.0 if document is None else float(document["total"]["held_gpu_hours"])

    with lab.agent() as agent, LeaseConnection([lab.socket]) as connection:
        connection.send({"request": "run"})
        queued, granted = (connection.receive(10) or {} for _ in range(2))
        job = f"lease-{granted['id']}"
        until(lambda: held(agent, job) > 0.5 / 3600, "it is billed")
        agent.stop()
    with lab.agent() as agent, LeaseConnection([lab.socket]) as connection:
        before = held(agent, job)
        connection.send({"request": "resume", "id": queued["id"], "token": queued["token"]})
        assert (connection.receive(10) or {})["event"] == "granted"
        until(lambda: held(agent, job) > before, "it is billed again")
        connection.send({"request": "done", "report": True})
        report: Any = (connection.receive(10) or {})["job"]
    assert report["total"]["held_gpu_hours"] > before > 0.5 / 3600


@pytest.mark.long
def test_an_agent_restart_keeps_leases_and_places(lab: Lab) -> None:
    with lab.agent() as agent:
        holders, rest = lab.hold(2), lab.fill()
        waiter = lab.start("run", "--quiet", "echo", "mine")
        until(lambda: lab.queue()["waiting"], "it waits")
        before = lab.queue()
        # What was recorded at the latest a second ago is kept.
        until(lambda: '"waiting": []' not in lab.record(), "the place is recorded")
        agent.stop(signal.SIGKILL)
    rest.close()
    with lab.agent():
        after = lab.queue()
        assert list(after["waiting"]) == list(before["waiting"])
        assert {id: lease["slots"] for id, lease in after["leases"].items()} == {
            id: lease["slots"] for id, lease in before["leases"].items()
        }
        assert holders[0].stdin is not None
        holders[0].stdin.close()
        assert waiter.communicate(timeout=60)[0] == "mine\n"
        assert len(lab.leases()) == len(before["leases"]) - 1
        assert holders[1].stdin is not None
        holders[1].stdin.close()
        assert [holder.wait(30) for holder in holders] == [0, 0]


@pytest.mark.long
def test_without_an_agent_it_says_so(lab: Lab, tmp_path: Path) -> None:
    lab.environment["GPUCOMMONS_LEASES_SOCKET"] = str(tmp_path / "no-agent-ever" / "leases.sock")
    status, _, err = lab.run_quietly("true")
    assert "no agent runs here" in err
    assert status == 2
    assert "0 found" in err


class Terminal:
    """A command on a terminal of its own, as in a user's shell."""

    def __init__(self, lab: Lab, *arguments: str, shell: bool = False) -> None:
        self._main, inner = pty.openpty()
        start = lab.start_program if shell else lab.start
        self.process = start(
            *arguments, stdin=inner, stdout=inner, stderr=inner, start_new_session=True, preexec_fn=_own_terminal
        )
        os.close(inner)
        self.text = ""

    def expect(self, words: str) -> None:
        self.expect_match(re.escape(words))

    def expect_match(self, pattern: str) -> None:
        deadline_s = time.monotonic() + 40
        while not re.search(pattern, self.text):
            assert time.monotonic() < deadline_s, self.text
            if select.select([self._main], [], [], 1)[0]:
                self.text += os.read(self._main, 4096).decode()

    def press(self, keys: bytes) -> None:
        os.write(self._main, keys)

    def close(self) -> None:
        os.close(self._main)


def _own_terminal() -> None:
    """Makes standard input the terminal of the new session: Ctrl-C is sent to its foreground programs."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


COUNT_INTERRUPTS = """
import signal, sys, time
seen = []
signal.signal(signal.SIGINT, lambda *_: seen.append(1))
print("ready", flush=True)
while not seen:
    time.sleep(0.05)
time.sleep(1)
print("interrupts:", len(seen))
sys.exit(9)
"""


def test_ctrl_c_on_a_terminal_reaches_the_command_once(shared_lab: Lab) -> None:
    terminal = Terminal(shared_lab, "run", "--quiet", *SMALL, sys.executable, "-c", COUNT_INTERRUPTS)
    terminal.expect("ready")
    terminal.press(b"\x03")
    terminal.expect("interrupts: 1")
    assert terminal.process.wait(30) == 9
    terminal.close()


@pytest.mark.long
def test_a_shell_has_its_gpu_until_it_ends(shared_lab: Lab) -> None:
    """`run bash`: Ctrl-C ends a command in the shell, and neither the shell nor the lease."""
    shell = ("env", "PS1=ready ", "bash", "--norc", "--noprofile", "--noediting", "-i")
    terminal = Terminal(shared_lab, "run", "--quiet", *SMALL, *shell)
    terminal.expect("ready ")
    assert len(shared_lab.leases()) == 1
    terminal.press(b"sh -c 'echo beg\"\"un; exec sleep 600'\n")
    terminal.expect("begun")
    terminal.press(b"\x03")
    terminal.expect_match(r"(?s)begun.*ready $")
    terminal.press(b"echo sees $CUDA_VISIBLE_DEVICES after $?\n")
    terminal.expect_match(r"(?s)sees (GPU|MIG)-\S+ after 130.*ready $")
    assert len(shared_lab.leases()) == 1
    terminal.press(b"exit 3\n")
    assert terminal.process.wait(30) == 3
    until(lambda: not shared_lab.leases(), "the lease is over")
    terminal.close()


@pytest.mark.long
def test_a_terminal_shows_the_place_and_ctrl_c_leaves_the_queue(shared_lab: Lab) -> None:
    terminal = Terminal(shared_lab, "run", "--gpus", "6", "true")
    for words in ("place 1 of 1: GPU ", " is held by ", "(Ctrl-C leaves)"):
        terminal.expect(words)
    terminal.expect_match(r"waiting [1-9][0-9]* s, (place )?1 of 1: GPU ")
    terminal.press(b"\x03")
    terminal.expect("left the queue")
    assert terminal.process.wait(30) == 130
    assert shared_lab.queue()["waiting"] == {}
    terminal.close()


@pytest.mark.long
def test_the_end_of_a_long_wait_rings_the_terminal_and_is_a_message(lab: Lab) -> None:
    lab.environment |= {"RUNTIME_DIRECTORY": str(lab.socket.parent), "GPUCOMMONS_WEB_LISTEN": ""}
    with lab.agent():
        with lab.fill():
            terminal = Terminal(lab, "run", "sh", "-c", "echo it runs; cat")
            terminal.expect_match(r"waiting 1[1-9] s")
            assert "\a" not in terminal.text
        terminal.expect("it runs")
        assert re.search(r"\agpucommons: waited 1\d s, runs on GPU \S+\r\n", terminal.text), terminal.text
        message = until(lambda: [line for line in lab.command("me")[1].splitlines() if "message (" in line], "of `me`")
        assert re.fullmatch(
            r"message \(\d\d \w+ \d\d:\d\d\): your command \(sh\) runs on GPU \S+ since then, after 1\d s in line",
            " ".join(message),
        )
        terminal.press(b"\x04")
        assert terminal.process.wait(30) == 0
        terminal.close()
        short = lab.start("run", "--quiet", "cat", stdin=subprocess.PIPE)
        until(lab.leases, "a command that did not wait runs")
        document = json.loads(until(lambda: out if '"lease-' in (out := lab.command("me", "--json")[1]) else None))
        assert [lease["waited_s"] < 5 for lease in document["me"]["leases"].values()] == [True]
        assert "message (" not in lab.command("me")[1], "it did not wait"
        short.communicate("", timeout=30)


@pytest.fixture
def shell(shared_lab: Lab) -> Iterator[Terminal]:
    """A shell with job control, as users have it."""
    terminal = Terminal(shared_lab, "bash", "--norc", "--noprofile", "--noediting", "-i", shell=True)
    terminal.press(b"stty -echo; PS1='rea''dy '\n")
    terminal.expect("ready ")
    yield terminal
    # Its stopped jobs get SIGHUP and SIGCONT.
    terminal.close()
    terminal.process.wait(30)


def _typed(*command: str) -> bytes:
    return shlex.join((sys.executable, "-m", "gpucommons", "run", "--quiet", *SMALL, *command)).encode() + b"\n"


COUNT_SIGNALS = """
import os, signal, sys
signal.signal(signal.SIGTSTP, getattr(signal, sys.argv[1]))
waited = {signal.SIGUSR1, signal.SIGUSR2}
signal.pthread_sigmask(signal.SIG_BLOCK, waited)
print("runner", os.getppid(), flush=True)
seen = [signal.sigwait(waited)]
print("had one", flush=True)
while seen[-1] != signal.SIGUSR2:
    seen.append(signal.sigwait(waited))
print("signals", *map(int, seen), flush=True)
sys.exit(7)
"""


@pytest.mark.parametrize("stop", ["SIG_DFL", "SIG_IGN"], ids=["command stops", "command ignores it"])
def test_after_ctrl_z_and_fg_the_command_goes_on_and_no_signal_comes_twice(shell: Terminal, stop: str) -> None:
    shell.press(_typed(sys.executable, "-c", COUNT_SIGNALS, stop))
    shell.expect_match(r"runner \d+")
    found = re.search(r"runner (\d+)", shell.text)
    assert found is not None
    runner = int(found[1])
    os.kill(runner, signal.SIGUSR1)
    shell.expect("had one")
    shell.press(b"\x1a")
    shell.expect("Stopped")
    # It has to be stopped for longer than it waits for a signal.
    time.sleep(1.5)
    shell.press(b"fg; echo status $?\n")
    os.kill(runner, signal.SIGUSR2)
    shell.expect_match(r"status \d+")
    assert f"signals {signal.SIGUSR1:d} {signal.SIGUSR2:d}\r\n" in shell.text, shell.text
    assert "status 7" in shell.text, shell.text


@pytest.mark.long
def test_a_command_stopped_with_ctrl_z_does_not_keep_its_gpus_beyond_its_limit(
    shell: Terminal, shared_lab: Lab
) -> None:
    shell.press(_typed("--for", "2s", "sh", "-c", "echo runs; exec sleep 600"))
    shell.expect("runs")
    shell.press(b"\x1a")
    shell.expect("Stopped")
    assert shared_lab.leases(), "it keeps them until its limit"
    until(lambda: not shared_lab.leases(), "the agent ends the lease", 180)
    shell.press(b"fg; echo status $?\n")
    shell.expect("the command was ended")
    shell.expect_match(r"status \d+")
    assert "status 124" in shell.text, shell.text
