"""`gpucommons slurm health`, Slurm's HealthCheckProgram: drains the node while a GPU is unusable, and undoes it.

A false alarm costs more than a late one: the node is drained only if the same problem is in two looks, of two samples
of the agent. It is resumed only if the drain is of this check, which its reason shows, and two looks find no problem.
A node that is drained, down or failing for another reason gets no jobs anyway: it is left as it is, since a drain would
replace the reason, and the undo would then put the node into service. Without an agent nothing is changed.

Pure but for `check`, which asks the agent and Slurm through its arguments.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from gpucommons.model.problems import FAULT_KINDS, HealthLevel
from gpucommons.slurm.jobs import AskSlurm

# One line for each partition of the node.
SHOW_NODE: Final = ("sinfo", "-a", "-h", "-N", "-o", "%T|%E", "-n")
REASON_PREFIX: Final = "gpucommons: "
_MAX_REASON: Final = 200
_LEVELS: Final = frozenset(level.name.lower() for level in HealthLevel if level >= HealthLevel.CRITICAL)

Document = Mapping[str, Any]


class NodeState(NamedTuple):
    """What Slurm says of the node. The state is such as idle, mixed, draining, drained*, down or failing."""

    state: str
    reason: str

    @property
    def is_ours(self) -> bool:
        return self.state.startswith("drain") and self.reason.startswith(REASON_PREFIX)

    @property
    def is_of_others(self) -> bool:
        return self.state.startswith(("drain", "down", "fail")) and not self.is_ours


def parse_node(text: str) -> NodeState:
    """From the first line of SHOW_NODE."""
    state, _, reason = text.partition("\n")[0].partition("|")
    return NodeState(state, reason.strip())


def draining_problems(document: Document) -> dict[str, str]:
    """The sentences of the problems for which a GPU should get no new work (rules/faults.py), by key.

    `document` is that of /api/v1/problems.
    """
    return {
        key: str(problem["sentence"])
        for key, problem in document["problems"].items()
        if problem["kind"] in FAULT_KINDS and problem["level"] in _LEVELS and problem["gpu_uuid"] is not None
    }


def judge(first: Document, second: Document, node: NodeState) -> list[str]:
    """What `scontrol update` shall set; empty: leave the node as it is."""
    before, now = draining_problems(first), draining_problems(second)
    lasting = [sentence for key, sentence in now.items() if key in before]
    if lasting:
        reason = (REASON_PREFIX + " ".join(lasting))[:_MAX_REASON]
        is_news = not (node.is_of_others or (node.is_ours and node.reason == reason))
        return ["state=drain", f"reason={reason}"] if is_news else []
    return ["state=resume"] if node.is_ours and not before and not now else []


def check(node_name: str, look: Callable[[], Document | None], wait: Callable[[], None], ask: AskSlurm) -> str:
    """Two looks and at most one change. One line about it, empty if there is none. Raises SlurmError."""
    first = look()
    if first is None:
        return "no agent answers; the node is left as it is"
    node = parse_node(ask([*SHOW_NODE, node_name]))
    if not node.state:
        return f"sinfo lists no node {node_name} in any partition; name this node as slurm.conf does, with --node"
    if not draining_problems(first) and not node.is_ours:
        return ""
    wait()
    second = look()
    if second is None:
        return "the agent stopped answering; the node is left as it is"
    # An administrator may have changed it meanwhile.
    change = judge(first, second, parse_node(ask([*SHOW_NODE, node_name])))
    if not change:
        return ""
    ask(["scontrol", "update", f"nodename={node_name}", *change])
    return f"node {node_name}: {' '.join(change)}"
