"""`gpucommons slurm health`, Slurm's HealthCheckProgram: drains the node while a GPU is unusable, and undoes it.

A false alarm costs more than a late one: the node is drained only if the same problem is in two looks, of two samples
of the agent. It is resumed only if the drain is of this check, which its reason shows, and two looks find no problem.
Without an agent nothing is changed. Pure but for `check`, which asks the agent and Slurm through its arguments.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from gpucommons.model.problems import FAULT_KINDS, HealthLevel
from gpucommons.slurm.jobs import AskSlurm

REASON_PREFIX: Final = "gpucommons: "
_MAX_REASON: Final = 200
_LEVELS: Final = frozenset(level.name.lower() for level in HealthLevel if level >= HealthLevel.CRITICAL)

_STATE: Final = re.compile(r"(?:^|\s)State=(\S+)")
# Slurm appends "[USER@TIME]" to a reason.
_REASON: Final = re.compile(r"\sReason=(.*?)\s*\[[^\[\]\s]+@[^\[\]\s]+\]")

Document = Mapping[str, Any]


class NodeState(NamedTuple):
    """What Slurm says of the node. `reason` is without the time and the user that Slurm adds."""

    drained: bool
    reason: str

    @property
    def is_ours(self) -> bool:
        return self.drained and self.reason.startswith(REASON_PREFIX)


class Change(NamedTuple):
    """What to do with the node: `state` is drain or resume."""

    state: str
    reason: str = ""


def parse_node(text: str) -> NodeState:
    """From `scontrol show node -o`."""
    state, reason = _STATE.search(text), _REASON.search(text)
    return NodeState(state is not None and "DRAIN" in state[1].split("+"), reason[1].strip() if reason else "")


def draining_problems(document: Document) -> dict[str, str]:
    """The sentences of the problems for which a GPU should get no new work (rules/faults.py), by key.

    `document` is that of /api/v1/problems.
    """
    return {
        key: str(problem["sentence"])
        for key, problem in document["problems"].items()
        if problem["kind"] in FAULT_KINDS and problem["level"] in _LEVELS and problem["gpu_uuid"] is not None
    }


def judge(first: Document, second: Document, node: NodeState) -> Change | None:
    """None: leave the node as it is."""
    before, now = draining_problems(first), draining_problems(second)
    lasting = [sentence for key, sentence in now.items() if key in before]
    if lasting:
        reason = (REASON_PREFIX + " ".join(lasting))[:_MAX_REASON]
        if not node.drained or (node.is_ours and node.reason != reason):
            return Change("drain", reason)
        return None
    return Change("resume") if node.is_ours and not before and not now else None


def check(
    node_name: str, look: Callable[[], Document | None], wait: Callable[[], None], ask: AskSlurm
) -> tuple[Change | None, str]:
    """Two looks and at most one change. The change, and one line about it. Raises SlurmError."""
    first = look()
    if first is None:
        return None, "no agent answers; the node is left as it is"
    node = parse_node(ask(["scontrol", "show", "node", "-o", node_name]))
    if not draining_problems(first) and not node.is_ours:
        return None, ""
    wait()
    second = look()
    if second is None:
        return None, "the agent stopped answering; the node is left as it is"
    change = judge(first, second, node)
    if change is None:
        return None, ""
    reason = [f"reason={change.reason}"] if change.reason else []
    ask(["scontrol", "update", f"nodename={node_name}", f"state={change.state}", *reason])
    return change, f"node {node_name}: {change.state} {change.reason}".rstrip()
