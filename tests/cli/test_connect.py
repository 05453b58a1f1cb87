"""The reading commands and a running agent, on a machine of their own: its /run, its port 9460, its users.

The machine is a network namespace and a root file system (testbeds/hosts.py), so that every address is the default.
"""

import fcntl
import json
import os
import pty
import re
import select
import signal
import socket
import stat
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import bcrypt
import pytest
from jsonschema import Draft202012Validator

from certificates import Authority
from gpucommons.cli import agent_client
from gpucommons.cli.agent_client import AgentAddress, NoAnswer
from gpucommons.cli.command_line import AgentUnreachable, CommandError
from gpucommons.cli.reader import Reader
from gpucommons.cli.top import _feed as top_feed
from gpucommons.cli.top_feed import AgentFeed, LocalFeed
from gpucommons.faces.documents import report as report_document
from gpucommons.faces.documents.resources import RESOURCES
from gpucommons.simulation import lab_people
from needs import needs_program
from running import command, command_process, running_agent
from terminal import without_escapes
from testbeds.hosts import Host, host
from users import as_user
from waiting import until

PROGRAM = "/opt/gpucommons/bin/gpucommons"
SOCKET = "/run/gpucommons/api.sock"
# A user of the scenario, and one without rows in it.
ALICE, CHEN, STRANGER, ROOT = lab_people.ALICE.uid, lab_people.CHEN.uid, 4711, 0
# The tests around this one have their sockets elsewhere: here the defaults are in force.
PLAIN = {"RUNTIME_DIRECTORY": "", "STATE_DIRECTORY": "", "XDG_RUNTIME_DIR": "", "HOME": "/nowhere"}
# The name of each document's resource, and the command that prints it.
JSON = {
    "gpus": ("gpus", "--json"),
    "who": ("who", "--json"),
    "allocations": ("allocations", "--json"),
    "slots": ("free", "--json"),
    "events": ("events", "--json"),
    "turns": ("scheduler", "status", "--json"),
    "report": ("report", "--by", "gpu", "--json"),
}
# Answers every request with something that looks like a document.
IMPOSTOR = """
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"sequence": 1, "hidden": null, "gpus": null}')
server = HTTPServer(("127.0.0.1", 9460), Handler)
print("ready")
server.serve_forever()
"""
SCHEMAS = {**{resource.name: resource.schema for resource in RESOURCES}, "report": report_document.SCHEMA}


def run(
    machine: Host, *arguments: str, uid: int = ROOT, environment: dict[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """One gpucommons command of a user of the machine."""
    entered = ["nsenter", f"--target={machine.pid}", "--net", "--mount", "--root", "--wd"]
    return subprocess.run(
        [*entered, *as_user(uid), PROGRAM, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **PLAIN, **(environment or {})},
    )


def document(machine: Host, *arguments: str, uid: int = ROOT) -> Any:
    done = run(machine, *arguments, uid=uid)
    assert (done.returncode, done.stderr) == (0, ""), "nothing on stderr: an agent answers"
    return json.loads(done.stdout)


@contextmanager
def agent_on(machine: Host, log: Path, *arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    with machine.running([PROGRAM, "up", "--simulate", "lab", *arguments], log, PLAIN) as process:
        until(lambda: "writing" in log.read_text() or process.poll() is not None, "the agent keeps accounts")
        yield process


@pytest.fixture(scope="module")
def machine() -> Iterator[Host]:
    needs_program("setpriv")
    with host() as made:
        made.install(PROGRAM)
        yield made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("connect")


@pytest.fixture(scope="module")
def lab(machine: Host, folder: Path) -> Iterator[Host]:
    """The machine with an agent that was started with nothing but the names of two files and a quota."""
    machine.write(
        "/etc/gpucommons.toml",
        '[ledger]\nfile = "/var/lib/gpucommons/own.sqlite"\nflush_s = 1\n'
        '[events]\nown_file = "/var/lib/gpucommons/own.jsonl"\n[quotas]\nalice = { gpu_equivalents = 2 }\n',
    )
    known = Path("/etc/passwd").read_text()
    users = f"alice:x:{ALICE}:{ALICE}::/:/bin/sh\nstranger:x:{STRANGER}:{STRANGER}::/:/bin/sh\n"
    machine.write("/etc/passwd", known + users)
    with agent_on(machine, folder / "lab.log", "--config", "/etc/gpucommons.toml"):
        until(lambda: document(machine, *JSON["report"])["accounts"]["30d"]["total"]["held_gpu_hours"] > 0)
        yield machine


def inside(machine: Host, path: str) -> Path:
    return Path(f"/proc/{machine.pid}/root{path}")


def test_the_socket_is_on_by_default_for_every_user(lab: Host) -> None:
    assert stat.S_IMODE(inside(lab, SOCKET).stat().st_mode) == 0o666
    assert stat.S_IMODE(inside(lab, "/run/gpucommons").stat().st_mode) == 0o711


def test_a_simulation_honours_the_files_of_the_settings(lab: Host) -> None:
    def names() -> set[str]:
        return {path.name for path in inside(lab, "/var/lib/gpucommons").iterdir()}

    kept = until(lambda: found if {"own.sqlite", "own.jsonl"} <= (found := names()) else None, "both are written")
    assert not any(name.startswith(("ledger", "events")) for name in kept)


@pytest.mark.long
@pytest.mark.parametrize("uid", [ALICE, *(pytest.param(uid, marks=pytest.mark.long) for uid in (ROOT, STRANGER))])
@pytest.mark.parametrize("name", JSON)
def test_json_is_the_document_of_the_agent_as_this_user_sees_it(lab: Host, name: str, uid: int) -> None:
    shown = document(lab, *JSON[name], uid=uid)
    Draft202012Validator(SCHEMAS[name]).validate(shown)
    assert shown["simulated"] == "lab"
    assert (shown["hidden"] is None) == (uid == ROOT)


def test_a_user_of_the_machine_sees_who_holds_what(lab: Host) -> None:
    everything, own, other = (document(lab, "who", "--json", uid=uid)["who"] for uid in (ROOT, ALICE, STRANGER))
    assert everything["processes"].keys() == own["processes"].keys() == other["processes"].keys()
    commands = {row["account"]: row["command"] for row in own["processes"].values() if row["command"]}
    assert set(commands) == {"alice"}, "the command lines of others are hidden"
    assert all(row["command"] is None for row in other["processes"].values())
    for name in ("gpus", "who", "allocations"):
        text = run(lab, name, uid=STRANGER).stdout
        assert "bob" in text, name
        assert "hidden" not in text, name
    held = {row["user"] for row in document(lab, "allocations", "--json", uid=STRANGER)["allocations"]["held"].values()}
    assert {"alice", "bob", "chen"} <= held


@pytest.mark.long
def test_top_of_a_user_of_the_machine_names_the_holders(lab: Host) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    entered = ["nsenter", f"--target={lab.pid}", "--net", "--mount", "--root", "--wd"]
    process = subprocess.Popen(
        [*entered, *as_user(STRANGER), PROGRAM, "top"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, **PLAIN, "TERM": "xterm-256color"},
        start_new_session=True,
    )
    os.close(theirs)
    shown = ""
    try:
        while not {"alice", "bob", "emeka"} <= set(re.findall(r"\w+", shown)):
            ready, _, _ = select.select([ours], [], [], 60)
            assert ready, shown
            shown += os.read(ours, 65_536).decode("utf-8", "replace")
        os.write(ours, b"q")
        while process.poll() is None and select.select([ours], [], [], 60)[0]:
            with suppress(OSError):
                os.read(ours, 65_536)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert "hidden" not in without_escapes(shown)


def test_a_process_in_a_container_sees_no_names(lab: Host) -> None:
    """Root there has uid 0, as root of the machine has."""
    entered = ["nsenter", f"--target={lab.pid}", "--net", "--mount", "--root", "--wd"]
    done = subprocess.run(
        [*entered, "unshare", "--pid", "--fork", "--mount-proc", PROGRAM, "who", "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **PLAIN},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["who"]["processes"] == {}
    assert set(found["who"]["owners"]) == {"user/others"}
    assert "does not identify you" in found["hidden"]["sentence"]


@pytest.mark.long
def test_what_is_hidden_is_not_shown_as_free(machine: Host, folder: Path) -> None:
    """Where the administrator hides the names of others."""
    machine.write("/etc/own.toml", '[privacy]\nshow_owners = "own"\n[web]\nsocket = "unix:/run/own.sock"\n')
    with agent_on(machine, folder / "own-names.log", "--config", "/etc/own.toml", "--listen", "127.0.0.1:9490"):
        ask = ("--connect", "/run/own.sock")

        def names(uid: int) -> dict[str, set[str]]:
            found: dict[str, set[str]] = {}
            for line in run(machine, "allocations", *ask, "--format", "csv", uid=uid).stdout.splitlines()[1:]:
                slot, user, *_ = line.split(",")
                found.setdefault(slot, set()).add(user)
            return found

        everything, own = names(ROOT), names(ALICE)
        free = {slot for slot, users in everything.items() if users == {"(free)"}}
        assert free
        assert {slot for slot, users in own.items() if users == {"(free)"}} == free
        assert {user for users in own.values() for user in users} == {"alice", "(free)", "(hidden)"}
        text = run(machine, "who", *ask, uid=STRANGER).stdout
        assert "alice" not in text
        assert text.endswith("rows of other owners are hidden: you see your own\n")
        assert "hidden" in run(machine, "gpus", *ask, uid=STRANGER).stdout
        done = run(machine, "who", *ask, "--pid", "4100", uid=STRANGER)
        assert done.returncode == 1
        assert "hidden: you see your own" in done.stderr, "it may be on a GPU"
        for target in ("4100", "alice"):
            done = run(machine, "why", *ask, target, uid=STRANGER)
            assert done.returncode == 1
            assert done.stderr.endswith("is on a GPU or waits for one (hidden: you see your own)\n"), "it may be"


@pytest.mark.long
@pytest.mark.parametrize("uid", [ROOT, ALICE])
def test_in_a_container_no_uid_sees_names(lab: Host, uid: int) -> None:
    entered = ["nsenter", f"--target={lab.pid}", "--net", "--mount", "--root", "--wd", "unshare", "--pid", "--fork"]
    for name in ("gpus", "who", "queue", "allocations"):
        done = subprocess.run(
            [*entered, *as_user(uid), PROGRAM, name],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, **PLAIN},
        )
        shown = done.stdout + done.stderr
        assert not re.search(r"\b(alice|bob|chen|dana|emeka|farah)\b", shown), (name, shown)
        assert "hidden" in shown or name == "queue", (name, shown)


@pytest.mark.long
@pytest.mark.parametrize(("option", "is_hidden"), [("2", True), ("0", False)])
def test_with_hidepid_a_user_sees_no_other_users(machine: Host, folder: Path, option: str, is_hidden: bool) -> None:
    machine.write("/etc/hidepid.toml", '[web]\nsocket = "unix:/run/hidepid.sock"\n')
    agent = [PROGRAM, "up", "--simulate", "lab", "--config", "/etc/hidepid.toml", "--listen", "127.0.0.1:9491"]
    # The mounts of pid 1 count: the agent and its users are in a pid namespace of their own.
    mount = f'mount -t proc -o hidepid={option} proc /proc && exec "$@"'
    shell = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "sh", "-c", mount, "sh", *agent]
    log = folder / f"hidepid-{option}.log"
    with machine.running(shell, log, PLAIN) as process:
        until(lambda: "writing" in log.read_text() or process.poll() is not None, "the agent keeps accounts")
        first = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().strip()
        entered = ["nsenter", f"--target={first}", "--pid", "--net", "--mount", "--root", "--wd"]

        def seen(uid: int, command: str) -> str:
            asked = [*as_user(uid), PROGRAM, command, "--connect", "/run/hidepid.sock"]
            done = subprocess.run(
                [*entered, *asked], capture_output=True, text=True, timeout=120, env={**os.environ, **PLAIN}
            )
            return done.stdout

        assert re.search(r"\balice\b", seen(ROOT, "who"))
        assert re.search(r"\balice\b", seen(ALICE, "who")), "her own"
        others = seen(STRANGER, "who")
        assert bool(re.search(r"\balice\b", others)) != is_hidden, others
        assert ("hidden: 1 process of other users" in others) == is_hidden, others
        assert bool(re.search(r"\balice\b", seen(STRANGER, "gpus"))) != is_hidden


@pytest.mark.long
def test_report_of_a_normal_user_is_that_of_the_agent(lab: Host) -> None:
    (everything,) = document(lab, "report", "--json")["accounts"].values()
    (own,) = document(lab, "report", "--json", uid=ALICE)["accounts"].values()
    assert set(own["users"]) == set(everything["users"]) > {"alice"}
    done = run(lab, "report", "--month", "November", uid=ALICE)
    assert (done.returncode, done.stdout) == (2, "")
    assert "invalid month 'November'" in done.stderr


@pytest.mark.long
def test_free_slots(lab: Host) -> None:
    slots = document(lab, "free", "--json", uid=STRANGER)["slots"]
    assert slots
    assert {slot["state"] for slot in slots.values()} == {"free"}
    listed = run(lab, "free", uid=STRANGER).stdout
    assert all(uuid in listed for uuid in slots)
    exported = run(lab, "free", "--export", "--memory", "10G", uid=STRANGER)
    name, _, uuids = exported.stdout.rstrip("\n").partition("=")
    assert (name, exported.returncode) == ("CUDA_VISIBLE_DEVICES", 0)
    assert set(uuids.split(",")) <= set(slots)
    for arguments, printed in ((("900G",), ""), (("900G", "--export"), "CUDA_VISIBLE_DEVICES=\n")):
        none = run(lab, "free", "--memory", *arguments)
        assert (none.returncode, none.stdout) == (1, printed), "no device, never that of another user"
        assert none.stderr.startswith("gpucommons: none free with 900G of memory: 3 free with less, ")
        assert "no GPU here has that much" in none.stderr
    for arguments, status in (
        (("--memory", "20"), 2),
        (("--memory", "much"), 2),
        (("--connect", "/run/nothing.sock"), 3),
    ):
        failed = run(lab, "free", "--export", *arguments, uid=STRANGER)
        assert (failed.returncode, failed.stdout) == (status, "CUDA_VISIBLE_DEVICES=\n"), "no device where it fails"
    taken = run(lab, "free", "--memory", "100G", uid=STRANGER)
    assert taken.returncode == 1
    assert "is held by emeka, idle for " in taken.stderr
    assert taken.stderr.endswith("'gpucommons run --memory 100G COMMAND' waits in line\n")
    assert "20G for 20 GB" in run(lab, "free", "--memory", "20").stderr
    empty = run(lab, "free", "--memory", "900G", "--json")
    assert (empty.returncode, json.loads(empty.stdout)["slots"]) == (1, {})
    assert run(lab, "free", "--memory", "much").returncode == 2


@pytest.mark.long
def test_me(lab: Host) -> None:
    me = document(lab, "me", "--json", uid=ALICE)["me"]
    assert (me["user"], me["uid"]) == ("alice", ALICE)
    assert {job["account"] for job in me["jobs"].values()} == {"alice"}
    held = sum(job["gpu_equivalents"] for job in me["jobs"].values())
    assert me["quota"] == {"gpu_equivalents": 2.0, "held_gpu_equivalents": held, "exceeded": held > 2}
    (month,) = me["month"].values()
    (accounts,) = document(lab, "report", "--user", "alice", "--json", uid=ALICE)["accounts"].values()
    assert 0 < month["held_gpu_hours"] <= accounts["total"]["held_gpu_hours"]
    text = run(lab, "me", uid=ALICE).stdout
    assert text.startswith(f"alice (uid {ALICE})\nSLOT  WORKLOAD ")
    assert f"quota: {held:g} of 2 GPU-equivalents held" in text
    quotas = {uid: document(lab, "allocations", "--json", uid=uid)["allocations"]["quotas"] for uid in (ROOT, STRANGER)}
    assert set(quotas[ROOT]) == set(quotas[STRANGER]) == {"alice"}
    other = document(lab, "me", "--json", uid=STRANGER)["me"]
    assert (other["user"], other["jobs"], other["clients"], other["quota"]) == ("stranger", {}, {}, None)
    assert run(lab, "me", uid=STRANGER).stdout.splitlines()[1:3] == [
        "jobs: none holds a GPU",
        "wait: none of your programs waits",
    ]


@pytest.mark.long
def test_why(lab: Host) -> None:
    turns = document(lab, "scheduler", "status", "--json")["turns"]
    waiting = [id for id, client in turns["clients"].items() if client["wait"]]
    found = document(lab, "why", "--json", uid=CHEN)["why"]
    assert {client["uid"] for client in found.values()} == {CHEN}
    one = document(lab, "why", str(turns["clients"][waiting[0]]["pid"]), "--json")["why"]
    assert set(one) == {waiting[0]}
    assert "has been" in run(lab, "why", turns["clients"][waiting[0]]["pod"]).stdout
    free_runner = next(row for row in document(lab, "who", "--json")["who"]["processes"].values() if row["pid"] == 4100)
    assert re.fullmatch(
        r"python \(pid 4100\) of alice on GPU 0 runs and takes no turns: "
        # The simulated GPU is busy, and at times so busy that its power limit slows it down.
        r"GPU 0 is (the limit: it uses \d+% of it|at its power limit of 700 W and runs slower)\.\n",
        run(lab, "why", str(free_runner["pid"])).stdout,
    )
    alone = document(lab, "why", str(free_runner["pid"]), "--json")
    assert (alone["why"], alone["requests"]) == ({}, {})
    assert [(row["pid"], row["paused_for_lease"]) for row in alone["unscheduled"].values()] == [(4100, None)]
    for uid, arguments in ((STRANGER, ("why",)), (ROOT, ("why", "4000000"))):
        done = run(lab, *arguments, uid=uid)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)


def test_a_waiting_client_waits_behind_another(lab: Host) -> None:
    def behind_another() -> Any:
        found = document(lab, "why", "--json", uid=CHEN)["why"]
        return next((client for client in found.values() if client["behind"]), None)

    client = until(behind_another, "a client of chen waits")
    assert client["wait"]["sentence"]


def test_what_is_not_found_is_status_1(lab: Host) -> None:
    for arguments in (("who", "--pid", "4000000"), ("scheduler", "explain", "nothing")):
        done = run(lab, *arguments)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)


@pytest.mark.long
def test_usage_is_status_2_and_an_agent_that_does_not_answer_status_3(lab: Host) -> None:
    done = run(lab, "gpus", "--connect", SOCKET, "--simulate", "lab")
    assert (done.returncode, "exclude each other" in done.stderr) == (2, True)
    assert run(lab, "gpus", "--password-file", "/etc/passwd").returncode == 2
    done = run(lab, "who", "--gpu", "99")
    assert (done.returncode, "unknown GPU '99'" in done.stderr) == (2, True)
    for name in ("/run/nothing.sock", "unix:/run/nothing.sock", "http://127.0.0.1:1"):
        done = run(lab, "gpus", "--connect", name)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)


def test_tcp_is_used_where_there_is_no_socket(lab: Host) -> None:
    done = run(lab, "gpus", "--json", environment={"GPUCOMMONS_WEB_SOCKET": ""})
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["simulated"] == "lab"


@pytest.mark.long
def test_a_second_agent_starts_with_a_warning_unless_the_socket_was_named(lab: Host, folder: Path) -> None:
    log = folder / "second.log"
    with agent_on(lab, log, "--listen", "127.0.0.1:9470"):
        (warning,) = [line for line in log.read_text().splitlines() if SOCKET in line]
        assert f"warning: cannot listen on {SOCKET}: another process (pid " in warning
        assert document(lab, "gpus", "--connect", "http://127.0.0.1:9470", "--json")["simulated"] == "lab"
    named = {"GPUCOMMONS_WEB_SOCKET": f"unix:{SOCKET}"}
    done = run(lab, "up", "--simulate", "lab", "--listen", "127.0.0.1:9470", environment=named)
    assert done.returncode == 2
    assert "set web.socket to another path" in done.stderr
    assert inside(lab, SOCKET).exists(), "the first agent still has it"
    assert document(lab, "gpus", "--json")["simulated"] == "lab"


@pytest.mark.long
def test_an_agent_that_is_not_root_serves_its_user(machine: Host, folder: Path) -> None:
    runtime = inside(machine, "/run/user-4711")
    runtime.mkdir(mode=0o700)
    os.chown(runtime, STRANGER, STRANGER)
    inside(machine, "/run/state-4711").mkdir()
    os.chown(inside(machine, "/run/state-4711"), STRANGER, STRANGER)
    environment = {**PLAIN, "XDG_RUNTIME_DIR": "/run/user-4711", "STATE_DIRECTORY": "/run/state-4711"}
    log = folder / "own.log"
    start = [*as_user(STRANGER), PROGRAM, "up", "--simulate", "faults", "--listen", "127.0.0.1:9480"]
    with machine.running(start, log, environment):
        until(lambda: "page " in log.read_text(), "it listens")
        assert stat.S_ISSOCK((runtime / "gpucommons" / "api.sock").stat().st_mode)
        named = {"GPUCOMMONS_WEB_LISTEN": "", **environment}
        found = run(machine, "gpus", "--json", "--connect", "/run/user-4711/gpucommons/api.sock", uid=STRANGER)
        assert json.loads(found.stdout)["simulated"] == "faults"
        if not inside(machine, SOCKET).exists():
            assert json.loads(run(machine, "gpus", "--json", uid=STRANGER, environment=named).stdout)["hidden"] is None


# Agents that do not answer: on a machine of their own.


@pytest.fixture(scope="module")
def lonely() -> Iterator[Host]:
    needs_program("setpriv")
    with host() as made:
        made.install(PROGRAM)
        yield made


def alone(done: "subprocess.CompletedProcess[str]") -> str:
    """The line on stderr of a command that found no agent and read the machine itself."""
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("gpucommons: no agent answers (")
    assert "this command reads the machine itself" in done.stderr
    return done.stderr


@pytest.mark.long
def test_a_killed_agent_leaves_a_stale_socket(lonely: Host, folder: Path) -> None:
    with agent_on(lonely, folder / "killed.log") as process:
        assert run(lonely, "gpus").stderr == ""
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert inside(lonely, SOCKET).exists()
    assert f"unix:{SOCKET}: Connection refused" in alone(run(lonely, "gpus"))
    assert run(lonely, "gpus", "--connect", SOCKET).returncode == 3


@pytest.mark.long
def test_without_an_agent_report_explains_itself_to_a_normal_user(lonely: Host) -> None:
    done = run(lonely, "report", uid=STRANGER)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "no agent answers (" in done.stderr
    assert "/nowhere/.local/state/gpucommons/ledger.sqlite" in done.stderr
    assert "/var/lib/gpucommons/ledger.sqlite" in done.stderr
    assert "gpucommons up" not in done.stderr, "a second agent does not help"
    assert run(lonely, "events", uid=STRANGER).returncode == 2


@pytest.mark.long
def test_a_server_that_is_not_an_agent_is_not_asked(lonely: Host, folder: Path) -> None:
    with lonely.running([sys.executable, "-u", "-c", IMPOSTOR], folder / "http.log"):
        until(lambda: "ready" in (folder / "http.log").read_text(), "it listens")
        assert "http://127.0.0.1:9460 is not an agent of gpucommons" in alone(run(lonely, "gpus", "--json"))


# The client by itself.


@contextmanager
def server(path: Path, answer: bytes | None) -> Iterator[str]:
    """A socket whose server sends these bytes to one client, or nothing at all."""
    done = threading.Event()
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen()

    def serve() -> None:
        connected, _ = listening.accept()
        connected.recv(4096)
        if answer is not None:
            connected.sendall(answer)
            connected.close()
        done.wait(30)
        connected.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"unix:{path}"
    finally:
        done.set()
        listening.close()
        thread.join(10)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (None, "does not answer within 0.2 s"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", "an answer that is not a document"),
        (b"nonsense\r\n\r\n", "does not speak HTTP: BadStatusLine"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", "an answer that is not a document"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nnot\x1bjson\n", "an answer that is not a document"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://x/\r\nContent-Length: 0\r\n\r\n", "status 302"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "has no /api/v1/gpus"),
        (b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n", "requires a password"),
        (b"", "does not speak HTTP: RemoteDisconnected"),
    ],
)
def test_an_answer_that_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes | None, says: str
) -> None:
    monkeypatch.setattr(agent_client, "_TIMEOUT_S", 0.2)
    with server(tmp_path / "s.sock", answer) as url:
        with pytest.raises(NoAnswer, match="unix:") as caught:
            agent_client.get(AgentAddress(url), "gpus")
        assert says in str(caught.value)


def test_an_agent_that_was_named_and_is_slow_is_unreachable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_client, "_TIMEOUT_S", 0.2)
    with server(tmp_path / "s.sock", None) as url, pytest.raises(AgentUnreachable, match="does not answer within"):
        Reader(connect=url).get("gpus")


def test_a_failure_of_the_agent_is_reported_with_its_reason(tmp_path: Path) -> None:
    body = b'{"error":"the ledger is damaged","parameter":""}'
    answer = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    with server(tmp_path / "s.sock", answer) as url, pytest.raises(CommandError, match="the ledger is damaged"):
        Reader(connect=url).ask("report")


@pytest.mark.long
def test_tls_and_passwords(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("node", "127.0.0.1")
    stored = bcrypt.hashpw(b"correct horse", bcrypt.gensalt(4)).decode()
    web = tmp_path / "web.yml"
    web.write_text(
        f"tls_server_config: {{cert_file: {pair.cert_file}, key_file: {pair.key_file}}}\n"
        f"basic_auth_users: {{reader: {stored!r}}}\n"
    )
    right, wrong, bad = tmp_path / "right", tmp_path / "wrong", tmp_path / "bad"
    right.write_text("reader:correct horse\n")
    wrong.write_text("reader:battery staple\n")
    bad.write_text("correct horse\n")
    with running_agent("--simulate", "lab", "--web.config.file", str(web)) as agent:

        def gpus(*options: str) -> "subprocess.CompletedProcess[str]":
            return command("gpus", "--json", "--connect", agent.url, *options)

        trusted = ("--ca-file", str(authority.file))
        done = gpus(*trusted, "--password-file", str(right))
        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(done.stdout)["simulated"] == "lab"
        for options, status, says in (
            (trusted, 3, "requires a password"),
            ((*trusted, "--password-file", str(wrong)), 3, "requires a password"),
            (("--password-file", str(right)), 3, "certificate"),
            ((*trusted, "--password-file", str(bad)), 2, "no colon; write USER:PASSWORD"),
            ((*trusted, "--password-file", str(tmp_path / "none")), 2, "No such file"),
            (("--ca-file", str(bad), "--password-file", str(right)), 2, "--ca-file"),
        ):
            done = gpus(*options)
            assert (done.returncode, done.stdout, done.stderr.count("\n")) == (status, "", 1), done.stderr
            assert says in done.stderr


@pytest.mark.long
def test_a_password_is_not_required_on_the_socket_and_is_named_for_tcp(tmp_path: Path) -> None:
    web = tmp_path / "web.yml"
    web.write_text(f"basic_auth_users: {{reader: {bcrypt.hashpw(b'x', bcrypt.gensalt(4)).decode()!r}}}\n")
    place = {"RUNTIME_DIRECTORY": str(tmp_path)}
    with running_agent("--simulate", "lab", "--web.config.file", str(web), environment=place) as agent:
        assert command("gpus", environment=place).stderr == ""
        address = agent.url.removeprefix("http://")
        done = command("gpus", environment={"GPUCOMMONS_WEB_LISTEN": address})
        assert "requires a password: use --connect http://127.0.0.1:" in done.stderr


@pytest.mark.long
def test_a_command_that_asks_the_agent_imports_little(tmp_path: Path) -> None:
    """Importing the agent takes most of a second; the answer of a running one a few milliseconds."""
    place = {"RUNTIME_DIRECTORY": str(tmp_path)}
    with running_agent("--simulate", "lab", environment=place):
        for name in ("gpus", "free"):
            done = command_process(
                name, environment={**place, "PYTHONPROFILEIMPORTTIME": "1", "GPUCOMMONS_WEB_LISTEN": ""}
            )
            imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
            assert "gpucommons.cli.agent_client" in imported
            heavy = {"aiohttp", "asyncio", "rich", "gpucommons.agent.agent", "gpucommons.model.snapshot", "sqlite3"}
            assert not heavy & imported


@pytest.mark.long
def test_events_are_followed_through_a_restart_of_the_agent(tmp_path: Path) -> None:
    place = {"RUNTIME_DIRECTORY": str(tmp_path)}
    with running_agent("--simulate", "lab", environment=place):
        until(
            lambda: json.loads(command("events", "--json", environment=place).stdout)["events"], "events are recorded"
        )
        following = subprocess.Popen(
            [sys.executable, "-m", "gpucommons", "events", "--follow", "--json", "--user", "alice"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **place},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert following.stdout is not None
        assert following.stderr is not None
        ((first, event),) = json.loads(following.stdout.readline()).items()
        assert event["user"] == "alice"
    try:
        assert "the agent stopped answering" in following.stderr.readline()
        seen = {first}
        with running_agent("--simulate", "lab", environment=place) as agent:
            recorded = until(lambda: json.loads(agent.get("/api/v1/events?user=alice")[1])["events"])
            while not seen & recorded.keys():
                seen |= json.loads(following.stdout.readline()).keys()
    finally:
        following.kill()
        following.communicate()


@pytest.mark.long
def test_top_follows_the_agent_that_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path))
    monkeypatch.setenv("GPUCOMMONS_WEB_LISTEN", "")
    with running_agent("--simulate", "lab", environment={"RUNTIME_DIRECTORY": str(tmp_path)}):
        found = top_feed(Reader())
        assert isinstance(found, AgentFeed)
        assert found.where == f"unix:{tmp_path}/api.sock"
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    assert isinstance(top_feed(Reader()), LocalFeed)
