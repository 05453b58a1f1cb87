"""leases.enforce = "pause": a program without a lease stops while another user has the GPU, and always goes on."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fakes.shared_gpu import MATMUL, SharedProgram
from gpucommons.leases.protocol import answer_of
from running import command
from shared_node import SharedNode, kill, shared_node
from waiting import until

pytestmark = pytest.mark.long

OTHER = 65534
PAUSE = '[leases]\nenabled = true\nenforce = "pause"\n'
SERVING = '[sharing_quotas]\nserving = { uid = "65533", share = false }\n'


class LeasedNode:
    """A node with fake GPUs whose agent gives leases."""

    def __init__(self, node: SharedNode) -> None:
        self.node = node
        self.socket = node.run / "leases.sock"
        self.state = node.run / "state"
        self.state.mkdir()
        self.environment = {"GPUCOMMONS_LEASES_SOCKET": str(self.socket), "STATE_DIRECTORY": str(self.state)}

    def start(self, *arguments: str, sections: str = PAUSE) -> None:
        arguments = arguments or ("--interval", "0.5")
        self.node.start_agent(*arguments, sections=sections, environment=self.environment)

    @contextmanager
    def lease(self, *options: str) -> Iterator[None]:
        """The GPU is leased to root for a command: what this process starts does not descend from `run`."""
        with subprocess.Popen(
            [sys.executable, "-m", "gpucommons", "run", "--quiet", *options, "cat"],
            stdin=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **self.environment},
        ) as run:
            try:
                until(lambda: self.queue()["leases"], "a lease")
                yield
            finally:
                run.communicate(timeout=30)

    def queue(self) -> Any:
        return answer_of([self.socket], {"request": "queue"})["answer"]

    def trespassers(self) -> dict[int, Any]:
        """By pid, as the queue shows them."""
        return {row["pid"]: row for lease in self.queue()["leases"].values() for row in lease["trespassers"]}

    def events(self) -> list[str]:
        text = (self.state / "events.jsonl").read_text()
        return [json.loads(line)["event_type"] for line in text.splitlines()]


@pytest.fixture
def leased() -> Iterator[LeasedNode]:
    with shared_node() as node:
        yield LeasedNode(node)


def trespass(leased: LeasedNode, uid: int = OTHER) -> SharedProgram:
    return leased.node.program(MATMUL[1024], uid=uid)


def goes_on(program: SharedProgram) -> None:
    until(lambda: not program.locked, "it is resumed")
    before = program.progress()
    until(lambda: program.progress() > before, "it makes progress")


def test_it_stops_with_the_lease_and_goes_on_whatever_ends(leased: LeasedNode) -> None:
    """The agent does not share programs: its pauser serves the leases alone."""
    node = leased.node
    leased.start()
    with leased.lease():
        program = trespass(leased)
        until(lambda: program.locked, "it is paused")
        until(lambda: leased.trespassers().get(program.pid, {}).get("paused"), "the queue shows it")
        before = program.progress()
        expected = f" uses it without a lease: program (pid {program.pid}); it is paused until the lease ends."
        until(lambda: expected in node.agent.get("/api/v1/problems")[1], "it is a problem")
        assert 'gpucommons_leases_trespassers_paused{slot="0"} 1' in node.agent.get("/metrics")[1]
        assert program.locked
        assert program.progress() == before
    goes_on(program)
    program.end()

    with leased.lease():
        program = trespass(leased)
        until(lambda: program.locked, "it is paused for the next lease, too")
        until(lambda: leased.events().count("lease.trespasser_paused") == 2, "the event log has it")
        node.agent.stop(signal.SIGKILL)
        goes_on(program)
        # The client's process lives: the next agent holds its lease, and pauses again.
        leased.start()
        until(lambda: program.locked, "it is paused by the next agent")
        before, killed = program.progress(), node.pauser()
        kill(killed)
        until(lambda: program.progress() > before, "the next pauser resumes it first")
        until(lambda: node.pauser() not in (killed, None) and program.locked, "and it is paused again")
        assert node.agent.stop() == 0
        goes_on(program)
    assert list(node.record.iterdir()) == []
    # Those that end with an agent are reported by the next one.
    leased.start(sections='[leases]\nenabled = true\nenforce = "report"\n')
    until(
        lambda: leased.events().count("lease.trespasser_resumed") == leased.events().count("lease.trespasser_paused"),
        "each pause has its end",
    )
    assert not program.locked


def test_with_shared_programs_it_takes_no_turns_and_exempt_programs_are_reported(leased: LeasedNode) -> None:
    node = leased.node
    leased.start("--share", "--interval", "0.5", sections=PAUSE + SERVING)
    with leased.lease():
        program, serving = trespass(leased), trespass(leased, uid=65533)
        until(lambda: program.locked, "it is paused")
        until(lambda: leased.trespassers().get(program.pid, {}).get("paused"), "the queue shows it")
        spared = until(lambda: leased.trespassers().get(serving.pid), "the queue shows the other")
        assert (spared["paused"], spared["not_paused_because"]) == (
            False,
            "sharing_quotas.serving has share = false",
        )
        until(lambda: node.client(program) is None, "it takes no turns")
        until(lambda: "until lease" in node.left_alone().get(program.pid, ""), "status says why")
        assert not serving.locked
        assert "paused" in command("queue", environment=leased.environment).stdout
        why = command("why", str(program.pid), "--connect", node.agent.url).stdout
        assert "is paused until lease" in " ".join(why.split()), why
        document = json.loads(command("why", str(program.pid), "--json", "--connect", node.agent.url).stdout)
        (row,) = document["unscheduled"].values()
        assert f"is paused until lease {row['paused_for_lease']} ends" in " ".join(why.split())

        # An administrator decides otherwise, for this lease.
        node.resume_all()
        until(lambda: "by hand" in leased.trespassers()[program.pid]["not_paused_because"], "it is left alone")
        assert not program.locked
    goes_on(program)
    until(lambda: node.client(program) is not None, "it takes turns again")
