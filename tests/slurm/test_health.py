"""The health check: two looks, its own drains only, and nothing without an agent."""

from collections.abc import Sequence
from typing import Any

import pytest

from gpucommons.slurm.health import NodeState, check, judge, parse_node

_LOST = {"kind": "gpu_lost", "level": "lost", "gpu_uuid": "GPU-1", "sentence": "GPU 1 is lost."}
_HOT = {"kind": "overheating", "level": "warning", "gpu_uuid": "GPU-1", "sentence": "GPU 1 is overheating."}
_ECC = {"kind": "ecc", "level": "warning", "gpu_uuid": "GPU-1", "sentence": "A row is remapped at the next reset."}
_UP = NodeState("idle", "none")
_OURS = NodeState("drained", "gpucommons: GPU 1 is lost.")
_ANOTHER = NodeState("drained", "gpucommons is being upgraded")
_DOWN = NodeState("down*", "bad disk")


def look(**problems: dict[str, str]) -> dict[str, Any]:
    return {"problems": problems}


@pytest.mark.parametrize(
    ("state", "reason", "expected"),
    [
        ("idle", "none", (False, False)),
        ("mixed", "gpucommons: GPU 1 is lost.", (False, False)),
        ("drained", "gpucommons: GPU 1 is lost.", (True, False)),
        ("draining*", "gpucommons: GPU 1 is lost.", (True, False)),
        ("draining", "bad disk", (False, True)),
        ("drained*", "a | b", (False, True)),
        ("down", "bad disk", (False, True)),
        ("down*", "gpucommons: GPU 1 is lost.", (False, True)),
        ("failing", "bad disk", (False, True)),
    ],
)
def test_the_state_of_a_node_is_read(state: str, reason: str, expected: tuple[bool, bool]) -> None:
    node = parse_node(f"{state}|{reason}\n" * 2)
    assert node == (state, reason)
    assert (node.is_ours, node.is_of_others) == expected


@pytest.mark.parametrize(
    ("first", "second", "node", "change"),
    [
        (look(a=_LOST), look(a=_LOST), _UP, ["state=drain", "reason=gpucommons: GPU 1 is lost."]),
        (look(a=_LOST), look(), _UP, []),
        (look(), look(a=_LOST), _UP, []),
        (look(a=_HOT, b=_ECC), look(a=_HOT, b=_ECC), _UP, []),
        (look(a=_LOST), look(a=_LOST), _OURS, []),
        (look(a=_LOST), look(a=_LOST), _ANOTHER, []),
        (look(a=_LOST), look(a=_LOST), _DOWN, []),
        (look(), look(), _DOWN, []),
        (look(), look(), _OURS, ["state=resume"]),
        (look(a=_HOT), look(a=_HOT), _OURS, ["state=resume"]),
        (look(a=_LOST), look(), _OURS, []),
        (look(), look(a=_LOST), _OURS, []),
        (look(), look(), _ANOTHER, []),
        (look(), look(), _UP, []),
    ],
)
def test_what_is_drained_and_resumed(first: Any, second: Any, node: NodeState, change: list[str]) -> None:
    assert judge(first, second, node) == change


class World:
    def __init__(self, *looks: dict[str, Any] | None, state: str = "idle|none", afterwards: str | None = None) -> None:
        """`afterwards` is the state after the wait between two looks."""
        self.looks = list(looks)
        self.waits = 0
        self.orders: list[Sequence[str]] = []
        self.state = state
        self.afterwards = state if afterwards is None else afterwards

    def check(self) -> str:
        return check("gpu1", lambda: self.looks.pop(0), self.wait, self.ask)

    def wait(self) -> None:
        self.waits += 1
        self.state = self.afterwards

    def ask(self, command: Sequence[str]) -> str:
        if command[0] == "sinfo":
            return f"{self.state}\n"
        self.orders.append(command[2:])
        return ""


def test_one_check_drains() -> None:
    world = World(look(a=_LOST), look(a=_LOST))
    assert world.check() == "node gpu1: state=drain reason=gpucommons: GPU 1 is lost."
    assert list(map(list, world.orders)) == [["nodename=gpu1", "state=drain", "reason=gpucommons: GPU 1 is lost."]]


def test_a_healthy_node_costs_one_look() -> None:
    world = World(look())
    assert world.check() == ""
    assert world.waits == 0


@pytest.mark.parametrize("looks", [(None,), (look(a=_LOST), None)])
def test_without_an_agent_nothing_changes(looks: tuple[Any, ...]) -> None:
    world = World(*looks, state="drained|gpucommons: GPU 1 is lost.")
    assert "left as it is" in world.check()
    assert world.orders == []


def test_a_node_that_slurm_does_not_know_by_this_name_is_left_as_it_is() -> None:
    """scontrol would also take the name of the host."""
    world = World(look(a=_LOST), look(a=_LOST), state="")
    assert "sinfo lists no node gpu1" in world.check()
    assert world.orders == []


@pytest.mark.parametrize("state", ["idle|none", "drained|gpucommons: GPU 2 is lost."])
def test_what_an_administrator_does_between_two_looks_stays(state: str) -> None:
    for problems in ({}, {"a": _LOST}):
        world = World(look(**problems), look(**problems), state=state, afterwards="drained|bad disk")
        assert world.check() == ""
        assert world.orders == []
