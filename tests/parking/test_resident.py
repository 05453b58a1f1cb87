"""The programs on a GPU, as the planner sees them after readings."""

from gpucommons.model.ownership import Workload
from gpucommons.model.process_identity import ProcessKey
from gpucommons.scheduler.parking.programs import ResidentPrograms
from gpucommons.scheduler.parking.values import PlannedProgram
from gpucommons.scheduler.programs.jobs import DeviceUse, GpuUser, ProgramActivity, group

KEY = "process:7"


def see(held: ResidentPrograms, as_of_s: float, *, activity: ProgramActivity, in_turns: bool) -> PlannedProgram:
    use = DeviceUse("GPU-0", "compute", 1 << 30, activity)
    process = GpuUser(7, ProcessKey(7, 1), KEY, (use,), Workload(uid=0, user="root"))
    keys = frozenset({KEY}) if in_turns else frozenset()
    held.see(group([process]), (), frozenset(), keys, frozenset(), as_of_s, {})
    (planned,) = held.for_plan(frozenset(), as_of_s)
    return planned


def test_short_turns_are_expected_again_for_a_while() -> None:
    held = ResidentPrograms(0.0, movable=True)
    before = see(held, 0.0, activity=ProgramActivity.ACTIVE, in_turns=False)
    assert (before.in_turns, before.was_in_turns) == (False, False)
    now = see(held, 10.0, activity=ProgramActivity.ACTIVE, in_turns=True)
    assert (now.in_turns, now.was_in_turns) == (True, True)
    alone = see(held, 100.0, activity=ProgramActivity.ACTIVE, in_turns=False)
    assert (alone.in_turns, alone.was_in_turns) == (False, True)
    later = see(held, 131.0, activity=ProgramActivity.ACTIVE, in_turns=False)
    assert not later.was_in_turns


def test_a_program_is_at_work_once_its_memory_is_seen_for_longer_than_a_context_takes() -> None:
    held = ResidentPrograms(0.0, movable=True)
    process = ProcessKey(7, 1)
    assert not held.is_at_work(process, 0.0)
    for now_s, at_work in ((0.0, False), (2.0, False), (3.0, True)):
        see(held, now_s, activity=ProgramActivity.ACTIVE, in_turns=False)
        assert held.is_at_work(process, now_s) is at_work
    held.see((), (), frozenset(), frozenset(), frozenset(), 4.0, {})
    assert not held.is_at_work(process, 9.0)


def test_a_program_that_only_holds_memory_does_not_use_the_gpu() -> None:
    held = ResidentPrograms(0.0, movable=True)
    assert see(held, 0.0, activity=ProgramActivity.ACTIVE, in_turns=False).uses_gpu
    assert not see(held, 1.0, activity=ProgramActivity.IDLE, in_turns=False).uses_gpu
