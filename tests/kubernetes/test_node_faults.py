"""Reports of GPU faults against an API server: set, taken back, and never anything that others set."""

from collections.abc import Mapping
from typing import Any

from fakes.node_api import NodeApi
from gpucommons.base.backoff import Backoff
from gpucommons.kubernetes.node_faults import NO_FAULTS, FaultReport, NodeFaults
from gpucommons.model.problems import HealthLevel, Problem, ProblemKind
from gpucommons.model.workloads import Pod
from gpucommons.sources.kubernetes.api import ClusterAccess
from testbeds.following import eventually, eventually_fails, following, in_event_loop

_OTHERS_TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
_OUR_TAINT = {"key": "gpucommons.io/gpu-problem", "value": "agent", "effect": "NoSchedule"}


def fault(index: int = 0, kind: ProblemKind = ProblemKind.GPU_LOST) -> Problem:
    return Problem(
        f"{kind}/GPU-{index}", kind, HealthLevel.LOST, f"GPU {index} is lost.", "Reboot.", f"GPU-{index}", index
    )


def report(*faults: Problem, pods: Mapping[str, list[Pod]] | None = None) -> FaultReport:
    return FaultReport({each.key: each for each in faults}, pods or {})


def reporter(api: NodeApi, *, taint: bool = True, check_every_s: float = 60.0) -> NodeFaults:
    access = ClusterAccess(api.url, "node-1")
    return NodeFaults(access, taint=taint, check_every_s=check_every_s, backoff=Backoff(0.02, 0.05))


async def shown(faults: NodeFaults, count: int) -> None:
    await eventually(lambda: faults.read().faults == count or None)


def events(api: NodeApi) -> list[tuple[str, str, str]]:
    return [(each["involvedObject"]["kind"], each["involvedObject"]["name"], each["reason"]) for each in api.events]


@in_event_loop
async def test_condition_taint_and_events_come_and_go() -> None:
    async with NodeApi(taints=[_OTHERS_TAINT]).serving() as api:
        faults = reporter(api)
        async with following(faults):
            hit = Pod("uid-1", "train", "lab")
            faults.report(report(fault(), pods={fault().key: [hit]}))
            await shown(faults, 1)
            condition = api.condition()
            assert condition is not None
            assert (condition["status"], condition["reason"]) == ("True", "GPULost")
            assert condition["message"] == "GPU 0 is lost."
            assert api.taints == [_OTHERS_TAINT, _OUR_TAINT]
            assert events(api) == [("Node", "node-1", "GPULost"), ("Pod", "train", "GPULost")]
            assert api.events[1]["involvedObject"]["uid"] == "uid-1"
            assert api.events[1]["metadata"]["namespace"] == "lab"
            assert {each["type"] for each in api.events} == {"Warning"}
            faults.report(NO_FAULTS)
            await shown(faults, 0)
            assert api.condition() is None
            assert api.condition("Ready") is not None
            assert api.taints == [_OTHERS_TAINT]
            assert events(api)[2:] == [("Node", "node-1", "GPUProblemEnded")]


@in_event_loop
async def test_another_agent_after_a_restart_repeats_no_event_and_takes_the_marks_back() -> None:
    async with NodeApi().serving() as api:
        first, second = reporter(api), reporter(api)
        async with following(first):
            first.report(report(fault()))
            await shown(first, 1)
        since = (api.condition() or {})["lastTransitionTime"]
        async with following(second):
            second.report(report(fault()))
            await shown(second, 1)
            assert len(api.events) == 1
            second.report(report(fault(), fault(1)))
            await shown(second, 2)
            assert (api.condition() or {})["lastTransitionTime"] == since
            assert [each["message"] for each in api.events] == ["GPU 0 is lost. Reboot.", "GPU 1 is lost. Reboot."]
            second.report(NO_FAULTS)
            await shown(second, 0)
        assert api.condition() is None
        assert api.taints == []


@in_event_loop
async def test_what_others_set_stays() -> None:
    theirs: list[dict[str, Any]] = [
        {"type": "GPUProblem", "status": "True", "reason": "XidErrorDetected", "message": "by another detector"}
    ]
    taint = {"key": "gpucommons.io/gpu-problem", "value": "by-hand", "effect": "NoSchedule"}
    async with NodeApi(conditions=list(theirs), taints=[taint]).serving() as api:
        faults = reporter(api)
        async with following(faults):
            for required, count in ((report(fault()), 1), (NO_FAULTS, 0)):
                faults.report(required)
                await shown(faults, count)
                assert api.condition() == theirs[0]
                assert api.taints == [taint]


@in_event_loop
async def test_a_taint_of_another_writer_at_the_same_time_is_not_lost() -> None:
    async with NodeApi().serving() as api:
        faults = reporter(api)
        api.before_patch = lambda: api.taint([_OTHERS_TAINT])
        async with following(faults):
            faults.report(report(fault()))
            await shown(faults, 1)
        assert api.taints == [_OTHERS_TAINT, _OUR_TAINT]


@in_event_loop
async def test_without_the_setting_no_taint_is_touched() -> None:
    async with NodeApi().serving() as api:
        faults = reporter(api, taint=False)
        async with following(faults):
            faults.report(report(fault()))
            await shown(faults, 1)
            assert not faults.read().tainted
        assert api.patches == ["condition", "event"]


@in_event_loop
async def test_a_healthy_node_is_only_read() -> None:
    async with NodeApi(taints=[_OTHERS_TAINT]).serving() as api:
        faults = reporter(api)
        async with following(faults):
            faults.report(NO_FAULTS)
            await shown(faults, 0)
        assert not api.patches


@in_event_loop
async def test_a_condition_that_is_removed_by_hand_comes_back() -> None:
    async with NodeApi().serving() as api:
        faults = reporter(api, check_every_s=0.05)
        async with following(faults):
            faults.report(report(fault()))
            await shown(faults, 1)
            api.conditions.pop()
            await eventually(api.condition)


@in_event_loop
async def test_missing_rights_are_reported_and_missing_events_are_not_a_failure() -> None:
    async with NodeApi().serving() as api:
        api.denied = {"condition"}
        faults = reporter(api, taint=False)
        async with following(faults):
            faults.report(report(fault()))
            error = await eventually_fails(faults, "denied")
            assert "patch on nodes/status" in str(error)
            api.denied = {"event"}
            await shown(faults, 1)
            assert api.condition() is not None
