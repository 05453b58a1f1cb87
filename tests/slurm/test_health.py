"""The health check: two looks, its own drains only, and nothing without an agent."""

from collections.abc import Sequence
from typing import Any

import pytest

from gpucommons.slurm.health import Change, NodeState, check, judge, parse_node

_LOST = {"kind": "gpu_lost", "level": "lost", "gpu_uuid": "GPU-1", "sentence": "GPU 1 is lost."}
_HOT = {"kind": "overheating", "level": "warning", "gpu_uuid": "GPU-1", "sentence": "GPU 1 is overheating."}
_ECC = {"kind": "ecc", "level": "warning", "gpu_uuid": "GPU-1", "sentence": "A row is remapped at the next reset."}
_UP = NodeState(False, "")
_OURS = NodeState(True, "gpucommons: GPU 1 is lost.")
_ANOTHER = NodeState(True, "gpucommons is being upgraded")


def look(**problems: dict[str, str]) -> dict[str, Any]:
    return {"problems": problems}


@pytest.mark.parametrize(
    ("state", "reason", "expected"),
    [
        ("IDLE", "", NodeState(False, "")),
        ("IDLE+DRAIN", " Reason=gpucommons: GPU 1 is lost. [root@2026-11-18T00:10:00]", _OURS),
        ("MIXED+DRAIN", " Reason=bad disk [alice@2026-11-18T00:10:00] Comment=x", NodeState(True, "bad disk")),
        ("DOWN+DRAIN+NOT_RESPONDING", " Reason=a [b] c [root@2026-11-18T00:10:00]", NodeState(True, "a [b] c")),
        ("DOWN*", " Reason=Not responding [slurm@2026-11-18T00:10:00]", NodeState(False, "Not responding")),
    ],
)
def test_the_state_of_a_node_is_read(state: str, reason: str, expected: NodeState) -> None:
    text = f"NodeName=gpu1 Arch=x86_64 State={state} ThreadsPerCore=1 CurrentWatts=0{reason}\n"
    assert parse_node(text) == expected


@pytest.mark.parametrize(
    ("first", "second", "node", "change"),
    [
        (look(a=_LOST), look(a=_LOST), _UP, Change("drain", "gpucommons: GPU 1 is lost.")),
        (look(a=_LOST), look(), _UP, None),
        (look(), look(a=_LOST), _UP, None),
        (look(a=_HOT, b=_ECC), look(a=_HOT, b=_ECC), _UP, None),
        (look(a=_LOST), look(a=_LOST), _OURS, None),
        (look(a=_LOST), look(a=_LOST), _ANOTHER, None),
        (look(), look(), _OURS, Change("resume")),
        (look(a=_HOT), look(a=_HOT), _OURS, Change("resume")),
        (look(a=_LOST), look(), _OURS, None),
        (look(), look(a=_LOST), _OURS, None),
        (look(), look(), _ANOTHER, None),
        (look(), look(), _UP, None),
    ],
)
def test_what_is_drained_and_resumed(first: Any, second: Any, node: NodeState, change: Change | None) -> None:
    assert judge(first, second, node) == change


class World:
    def __init__(self, *looks: dict[str, Any] | None, state: str = "IDLE") -> None:
        self.looks = list(looks)
        self.waits = 0
        self.orders: list[Sequence[str]] = []
        self.state = state

    def check(self) -> tuple[Change | None, str]:
        return check("gpu1", lambda: self.looks.pop(0), self.wait, self.ask)

    def wait(self) -> None:
        self.waits += 1

    def ask(self, command: Sequence[str]) -> str:
        if command[1] == "show":
            return f"NodeName=gpu1 State={self.state}\n"
        self.orders.append(command[2:])
        return ""


def test_one_check_drains() -> None:
    world = World(look(a=_LOST), look(a=_LOST))
    change, line = world.check()
    assert change == Change("drain", "gpucommons: GPU 1 is lost.")
    assert line == "node gpu1: drain gpucommons: GPU 1 is lost."
    assert list(map(list, world.orders)) == [["nodename=gpu1", "state=drain", "reason=gpucommons: GPU 1 is lost."]]


def test_a_healthy_node_costs_one_look() -> None:
    world = World(look())
    assert world.check() == (None, "")
    assert world.waits == 0


@pytest.mark.parametrize("looks", [(None,), (look(a=_LOST), None)])
def test_without_an_agent_nothing_changes(looks: tuple[Any, ...]) -> None:
    world = World(*looks, state="IDLE+DRAIN Reason=gpucommons: GPU 1 is lost. [root@2026-11-18T00:10:00]")
    change, line = world.check()
    assert change is None
    assert "left as it is" in line
    assert world.orders == []
