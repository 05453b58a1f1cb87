"""A program of a whole agent ends while it is paused or parked, and another process gets its pid and its session id.

The new process is never paused or resumed for the old program, and inherits nothing. Each scenario has its own GPU.
"""

import json
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import at_pid
from fakes.cuda.control import FakeProgram
from fakes.shared_gpu import MATMUL, SharedProgram
from gpucommons.config.runtime_directory import control_path
from gpucommons.pauser.backend import State
from needs import needs_chosen_pids
from shared_node import SharedNode, shared_node
from waiting import until

pytestmark = pytest.mark.long

HEAVY = MATMUL[4096]
SAME_GPU, LEFT_GPU, FREE_GPU, NO_GPU, PARKED, PARKED_NO_GPU = range(6)
MIB = 1 << 20


@dataclass
class Reuse:
    """The id of the old program's client, and what has its pid now."""

    client: str
    new: FakeProgram


class Reused:
    """Two programs take turns on each of three GPUs, and on two GPUs one is parked. One of each ends."""

    def __init__(self, node: SharedNode) -> None:
        self.node = node
        self.others = {gpu: node.program(HEAVY, gpu=gpu) for gpu in (SAME_GPU, LEFT_GPU, NO_GPU)}
        self.old = {gpu: node.program(HEAVY, gpu=gpu) for gpu in (SAME_GPU, LEFT_GPU, NO_GPU)}
        self.old |= {gpu: node.program(HEAVY, gpu=gpu, memory_bytes=MIB) for gpu in (PARKED, PARKED_NO_GPU)}
        self.after: dict[int, Reuse] = {}

    def end_and_replace(self) -> None:
        node = self.node
        node.wait_for(lambda: all(self.turns(gpu) > 2 for gpu in self.others), "they have taken turns")
        for gpu in self.others:
            self.order({"command": "set-limit", "target": f"pid:{self.old[gpu].pid}", "core": "40"})
        for gpu in (PARKED, PARKED_NO_GPU):
            self.order({"command": "park", "target": str(self.old[gpu].pid)})
        for gpu, place in ((SAME_GPU, SAME_GPU), (LEFT_GPU, FREE_GPU), (NO_GPU, None)):
            client = self.id(self.old[gpu])
            self.wait_for_state(gpu, State.LOCKED)
            self.after[gpu] = Reuse(client, self.replace(self.old[gpu], place))
        for gpu, place in ((PARKED, PARKED), (PARKED_NO_GPU, None)):
            self.wait_for_state(gpu, State.CHECKPOINTED)
            self.after[gpu] = Reuse("", self.replace(self.old[gpu], place))

    def order(self, given: Mapping[str, str]) -> None:
        """To the control socket; again until the agent knows the program."""
        until(lambda: self.ask(given)["ok"], f"{given}")

    def ask(self, given: Mapping[str, str]) -> Any:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(control_path(str(self.node.socket)))
            connection.sendall(json.dumps(given).encode() + b"\n")
            return json.loads(connection.makefile("rb").readline())

    def wait_for_state(self, gpu: int, state: State) -> None:
        until(lambda: self.old[gpu].program.state is state, f"it is {state.name}")

    def replace(self, old: SharedProgram, gpu: int | None) -> FakeProgram:
        """End it, and give its pid to another program on this GPU, or to a process that is on no GPU."""
        shared = self.node.shared
        old.end()
        (shared.cuda.directory / str(old.pid)).unlink()
        prefix = (sys.executable, at_pid.__file__, str(old.pid))
        if gpu is None:
            new = shared.cuda.start(prefix=prefix, is_child=True)
        else:
            new = shared.program(HEAVY, gpu=gpu, prefix=prefix, is_child=True).program
        assert (new.pid, new.key != old.key) == (old.pid, True), "the kernel gave the pid again"
        return new

    def id(self, job: SharedProgram | FakeProgram) -> str:
        """The id of the client with this pid; empty where there is none."""
        rows = self.node.turns()["clients"].items()
        return next((id for id, row in rows if job.pid in row["processes"]), "")

    def row(self, job: SharedProgram | FakeProgram) -> dict[str, object]:
        return dict(self.node.turns()["clients"][self.id(job)])

    def turns(self, gpu: int) -> int:
        row = self.node.client(self.old[gpu])
        return 0 if row is None else int(row["turns_total"])

    def entry(self, gpu: int) -> Path:
        return self.node.record / str(self.old[gpu].pid)


@pytest.fixture(scope="module")
def reused() -> Iterator[Reused]:
    needs_chosen_pids()
    with shared_node(6) as node:
        made = Reused(node.start_agent())
        made.end_and_replace()
        # Two readings of the programs, and a look of the pauser.
        node.shared.let_pass(2.5)
        yield made


def test_another_program_of_the_gpu_begins_as_a_new_client(reused: Reused) -> None:
    before, node = reused.after[SAME_GPU], reused.node
    node.wait_for(lambda: reused.id(before.new), "it takes part")
    row = reused.row(before.new)
    assert reused.id(before.new) != before.client
    assert row["core_quota_percent"] == 100, "the limit was that of the old process"
    node.wait_for(lambda: before.new.locks > 1, "it takes turns of its own")


def test_a_program_on_another_gpu_is_not_paused_for_the_old_one(reused: Reused) -> None:
    before, node = reused.after[LEFT_GPU], reused.node
    node.wait_for(lambda: node.way(FREE_GPU) == "alone", "it is alone on its GPU")
    assert reused.id(before.new) != before.client
    assert reused.row(before.new)["core_quota_percent"] == 100
    assert (before.new.locks, before.new.state) == (0, State.RUNNING)


@pytest.mark.parametrize("gpu", [NO_GPU, PARKED_NO_GPU])
def test_a_process_on_no_gpu_is_left_alone(reused: Reused, gpu: int) -> None:
    new = reused.after[gpu].new
    assert reused.id(new) == ""
    assert (new.locks, new.state) == (0, State.RUNNING)


def test_the_partner_of_an_ended_program_runs_alone(reused: Reused) -> None:
    for gpu in (LEFT_GPU, NO_GPU):
        assert reused.node.way(gpu) == "alone"
        reused.others[gpu].program.runs()


def test_a_parked_program_leaves_nothing_to_the_next_one(reused: Reused) -> None:
    new = reused.after[PARKED].new
    assert reused.ask({"command": "status"})["answer"]["parking"]["programs"] == {}
    reused.node.wait_for(lambda: reused.id(new), "it takes part")
    assert (new.locks, new.state) == (0, State.RUNNING)


def test_the_record_forgets_the_old_ones(reused: Reused) -> None:
    entries = [reused.entry(gpu) for gpu in (LEFT_GPU, NO_GPU, PARKED, PARKED_NO_GPU)]
    until(lambda: not any(entry.exists() for entry in entries), "their entries are removed")
