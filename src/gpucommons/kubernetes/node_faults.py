"""Reports GPU faults to Kubernetes, and takes the reports back: node condition, events, and a taint where asked for.

The state is in Kubernetes: what is required is compared with the node's object at every change and every few minutes,
so that a restart of the agent neither repeats an event nor leaves a condition behind. Only the agent's own marks are
changed: a condition with one of its reasons, a taint with its value. `rules/faults.py` judges what a fault is.

Rights: get nodes; patch nodes/status; create events; for the taint also patch nodes.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from gpucommons.base.backoff import Backoff
from gpucommons.model.problems import Problem, ProblemKind
from gpucommons.model.workloads import NodeFaultsReading, Pod
from gpucommons.sources.kubernetes.api import ApiServer, ClusterAccess, in_cluster
from gpucommons.sources.source import JsonObject, Latest, SourceError, items, keep_following, mapping, text

CONDITION: Final = "GPUProblem"
TAINT_KEY: Final = "gpucommons.io/gpu-problem"
_TAINT: Final = {"key": TAINT_KEY, "value": "agent", "effect": "NoSchedule"}
_REASONS: Final = {
    ProblemKind.GPU_LOST: "GPULost",
    ProblemKind.GPU_FAULT: "GPUNeedsRecovery",
    ProblemKind.ECC: "GPUMemoryFaulty",
}
_ENDED: Final = "GPUProblemEnded"
_LONGEST_MESSAGE: Final = 1000

_STRATEGIC: Final = "application/strategic-merge-patch+json"
_MERGE: Final = "application/merge-patch+json"
_GRANT: Final = (
    "grant its service account get on nodes, patch on nodes/status and create on events; for taints also patch on nodes"
)
_TIMEOUT_S: Final = 10.0
# A condition that was removed by hand, or a node that was created again, gets its marks again within this time.
_CHECK_EVERY_S: Final = 300.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FaultReport:
    """What Kubernetes should know: the faults by key, gravest first.

    `pods` are, by the same key, those that have a share of the faulty GPU or run on it.
    """

    faults: Mapping[str, Problem]
    pods: Mapping[str, Sequence[Pod]]

    @property
    def message(self) -> str:
        return " ".join(problem.sentence for problem in self.faults.values())[:_LONGEST_MESSAGE]


NO_FAULTS: Final = FaultReport({}, {})


# What to change in the node's object. Pure: the object as the API server has it goes in.


def condition_patch(node: JsonObject, report: FaultReport, now: str) -> object | None:
    """A strategic merge patch of the status; None if nothing has to change."""
    before = _condition(node)
    if before and text(before.get("reason")) not in _REASONS.values():
        return None
    is_set = text(before.get("status")) == "True"
    if report.faults and not (is_set and text(before.get("message")) == report.message):
        changed = {
            "status": "True",
            "reason": _REASONS[next(iter(report.faults.values())).kind],
            "message": report.message,
            "lastHeartbeatTime": now,
            "lastTransitionTime": text(before.get("lastTransitionTime")) if is_set else now,
        }
    elif before and not report.faults:
        changed = {"$patch": "delete"}
    else:
        return None
    return {"status": {"conditions": [{"type": CONDITION} | changed]}}


def taint_patch(node: JsonObject, required: bool) -> object | None:
    """A merge patch with the version of the object: a list of taints is only replaced as a whole."""
    taints = [mapping(taint) for taint in items(mapping(node.get("spec")).get("taints"))]
    of_key = [
        taint for taint in taints if text(taint.get("key")) == TAINT_KEY and text(taint.get("effect")) == "NoSchedule"
    ]
    ours = [taint for taint in of_key if text(taint.get("value")) == _TAINT["value"]]
    if required == bool(ours) or (required and of_key):
        return None
    now = [*taints, _TAINT] if required else [taint for taint in taints if taint not in ours]
    version = text(mapping(node.get("metadata")).get("resourceVersion"))
    return {"metadata": {"resourceVersion": version}, "spec": {"taints": now}}


def unreported(node: JsonObject, report: FaultReport) -> list[str]:
    """The keys of faults that the condition does not show yet: they get events."""
    shown = text(_condition(node).get("message"))
    return [key for key, problem in report.faults.items() if problem.sentence not in shown]


def _condition(node: JsonObject) -> JsonObject:
    """Empty if the node has none."""
    conditions = map(mapping, items(mapping(node.get("status")).get("conditions")))
    return next((condition for condition in conditions if text(condition.get("type")) == CONDITION), {})


def events(node: str, report: FaultReport, new: Iterable[str], now: str) -> Iterator[tuple[str, object]]:
    """The events on the node and on the pods, each with its namespace. Events of nodes are in `default`."""
    of_node = {"kind": "Node", "apiVersion": "v1", "name": node, "uid": node}
    if not report.faults:
        yield "default", _event("default", of_node, node, _ENDED, "The GPUs of this node work again.", now)
    for key in new:
        problem = report.faults[key]
        reason, message = _REASONS[problem.kind], f"{problem.sentence} {problem.remedy}"
        yield "default", _event("default", of_node, node, reason, message, now)
        for pod in report.pods.get(key, ()):
            of_pod = {"kind": "Pod", "apiVersion": "v1", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid}
            yield pod.namespace, _event(pod.namespace, of_pod, node, reason, message, now)


def _event(namespace: str, about: Mapping[str, str], node: str, reason: str, message: str, now: str) -> object:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": "gpucommons-", "namespace": namespace},
        "involvedObject": about,
        "reason": reason,
        "message": message[:_LONGEST_MESSAGE],
        "type": "Normal" if reason == _ENDED else "Warning",
        "source": {"component": "gpucommons", "host": node},
        "reportingComponent": "gpucommons",
        "reportingInstance": node,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }


# The shell: one connection to the API server, used when something changes.


class NodeFaults:
    """`run` must be running. `report` is called on the same loop, with what holds now."""

    def __init__(
        self,
        access: ClusterAccess | None,
        *,
        taint: bool,
        timeout_s: float = _TIMEOUT_S,
        check_every_s: float = _CHECK_EVERY_S,
        backoff: Backoff | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._access = access
        self._taint = taint
        self._timeout_s = timeout_s
        self._check_every_s = check_every_s
        self._backoff = backoff or Backoff()
        self._now = now
        self._required: FaultReport | None = None
        self._changed = asyncio.Event()
        self._latest: Latest[NodeFaultsReading] = Latest("waiting for the GPUs of this node")

    def report(self, required: FaultReport) -> None:
        if self._required is None or required.faults.keys() != self._required.faults.keys():
            self._required = required
            self._changed.set()

    def read(self) -> NodeFaultsReading:
        return self._latest.read()

    async def run(self) -> None:
        """Keep the node's marks as required until cancelled, across failures of the API server."""
        await keep_following(self._follow, self._latest.fail_by, self._backoff)

    async def _follow(self) -> None:
        while self._required is None:
            await self._changed.wait()
        access = self._access or in_cluster(os.environ)
        api = ApiServer(access, self._timeout_s, _GRANT)
        while True:
            self._changed.clear()
            required = self._required
            try:
                await self._reconcile(api, access.node_name, required)
            except SourceError as error:
                if error.reason == "conflict":
                    continue
                raise
            self._latest.succeed(NodeFaultsReading(len(required.faults), self._taint and bool(required.faults)))
            self._backoff.reset()
            try:
                async with asyncio.timeout(self._check_every_s):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def _reconcile(self, api: ApiServer, name: str, required: FaultReport) -> None:
        path = f"/api/v1/nodes/{name}"
        node = mapping(await api.get(path, {}))
        if text(node.get("kind")) != "Node":
            raise SourceError("garbage", f"the response of the API server is not the node {name}")
        now = self._now().strftime("%Y-%m-%dT%H:%M:%SZ")
        new, patch = unreported(node, required), condition_patch(node, required, now)
        # The taint first: a pod that is placed between the two would land on the faulty GPU's node.
        taint = taint_patch(node, self._taint and bool(required.faults))
        if taint is not None:
            await api.send("PATCH", path, taint, _MERGE)
        if patch is not None:
            await api.send("PATCH", f"{path}/status", patch, _STRATEGIC)
            for namespace, event in events(name, required, new, now):
                # An event is news, not state: one that cannot be written, as in a namespace that ends, is lost.
                try:
                    await api.send("POST", f"/api/v1/namespaces/{namespace}/events", event)
                except SourceError as error:
                    log.warning("cannot write an event: %s", error)
