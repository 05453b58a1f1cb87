"""Which programs are left alone, and the sentence that says why."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attribution.builders import container
from gpucommons.model.ownership import Reason
from gpucommons.model.process_identity import ProcessKey
from gpucommons.model.workloads import Pod
from gpucommons.scheduler.programs.exemptions import (
    Circumstances,
    Exempt,
    Participation,
    Refusal,
    ShareScope,
    divide,
)
from gpucommons.scheduler.programs.matching import ProgramRule
from scheduler.programs.node import Node, Proc, docker, kubernetes, pod_uid, slurm
from scheduler.programs.strategies import NODES

ALL = Circumstances(ShareScope.ALL, agent_uid=0)
OWN = Circumstances(ShareScope.OWN, agent_uid=1000)
PIDS = st.frozensets(st.integers(2, 400), max_size=20)
REFUSALS = st.dictionaries(
    st.builds(ProcessKey, st.integers(2, 400), st.integers(1, 5)),
    st.builds(Refusal, st.sampled_from(["not supported", "\x1b[2J" * 100]), st.none() | st.floats(0, 100)),
    max_size=20,
)


def divided(*processes: Proc, around: Circumstances = ALL, now_s: float = 0.0, **given: object) -> Participation:
    gpus = 1 + max(index for p in processes for index in p.gpus)
    return divide(Node(processes, gpus=gpus, **given).read().processes, around, now_s)  # type: ignore[arg-type]


def sentences(found: Participation) -> dict[str, tuple[Exempt, str]]:
    return {one.program.display_name: (one.why, one.sentence) for one in found.exempt}


@given(NODES, st.sampled_from(ShareScope), PIDS, PIDS, REFUSALS, st.booleans())
def test_each_process_takes_part_or_is_left_alone_for_one_reason(
    node: Node,
    scope: ShareScope,
    agent: frozenset[int],
    nvshare: frozenset[int],
    refused: Mapping[ProcessKey, Refusal],
    with_rule: bool,
) -> None:
    rules = (ProgramRule("x", user="bob", share=False),) if with_rule else ()
    around = Circumstances(scope, 1000, agent, nvshare, refused, rules)
    found = divide(node.read().processes, around, 50.0)
    programs = (*found.programs, *(one.program for one in found.exempt))
    assert sorted(p.pid for program in programs for p in program.processes) == sorted(p.pid for p in node.processes)
    assert all(one.sentence.isprintable() and 10 < len(one.sentence) < 250 for one in found.exempt)
    for program in found.programs:
        assert scope is not ShareScope.OFF
        assert scope is ShareScope.ALL or program.uid == 1000
        for process in program.processes:
            assert process.key is not None
            assert process.pid not in agent | nvshare
            assert (refusal := refused.get(process.key)) is None or (refusal.until_s or 51) <= 50
            assert not any("mps" in use.kind for use in process.uses)


def test_a_plain_program_takes_part() -> None:
    found = divided(Proc(5))
    assert [program.key for program in found.programs] == ["process:5.100"]
    assert not found.exempt


def test_switched_off_all_programs_are_left_alone() -> None:
    found = divided(Proc(5), around=Circumstances(ShareScope.OFF, 0))
    assert [one.why for one in found.exempt] == [Exempt.OFF]


@pytest.mark.parametrize(
    ("process", "why", "text"),
    [
        (Proc(5, name="Xorg", kind="graphics"), Exempt.DISPLAY, "it is a display server (Xorg)"),
        (Proc(5, name="kwin_wayland", kind="compute+graphics"), Exempt.DISPLAY, "(kwin_wayland)"),
        (Proc(5, name="blender", kind="graphics"), Exempt.DISPLAY, "for graphics only"),
        (Proc(5, kind="compute+mps"), Exempt.MPS, "a client of MPS"),
        (Proc(5, kind="mps", sm=None), Exempt.MPS, "a client of MPS"),
        (Proc(5, name="nvidia-cuda-mps"), Exempt.MPS, "the server of MPS"),
        (Proc(5, name="nvidia-cuda-mps-server"), Exempt.MPS, "the server of MPS"),
        (Proc(5, unseen=Reason.PID_NAMESPACE), Exempt.UNSEEN, "another pid namespace"),
        (Proc(5, unseen=Reason.PROCESS_UNREADABLE), Exempt.UNSEEN, "may not read it"),
        (Proc(5, unseen=Reason.PROCESS_GONE), Exempt.UNSEEN, "it ended"),
    ],
)
def test_processes_that_cannot_or_must_not_be_paused(process: Proc, why: Exempt, text: str) -> None:
    found = divided(process)
    ((program_why, sentence),) = sentences(found).values()
    assert program_why is why
    assert text in sentence
    assert not found.programs


def test_a_process_that_computes_and_draws_takes_part() -> None:
    assert divided(Proc(5, name="blender", kind="compute+graphics")).programs
    assert divided(Proc(5, name="python3", kind="compute", gpus=(0, 1))).programs


def test_the_agent_and_its_helpers_are_left_alone() -> None:
    found = divided(Proc(5), Proc(6), around=Circumstances(ShareScope.ALL, 0, agent_pids={5}))
    assert sentences(found) == {"alice · python3 (pid 5)": (Exempt.AGENT, "it is part of the agent")}
    assert [program.first.pid for program in found.programs] == [6]


def test_a_client_of_nvshare_is_left_to_its_library() -> None:
    around = Circumstances(ShareScope.ALL, 0, nvshare_pids={5})
    found = divided(Proc(5, docker(1)), Proc(6, docker(1)), around=around)
    assert [one.why for one in found.exempt] == [Exempt.NVSHARE]
    assert [p.pid for program in found.programs for p in program.processes] == [6]


def test_a_display_server_does_not_exempt_the_session_that_it_runs_in() -> None:
    found = divided(Proc(5, docker(1), name="Xorg", kind="graphics"), Proc(6, docker(1)))
    assert [one.program.first.pid for one in found.exempt] == [5]
    assert [program.first.pid for program in found.programs] == [6]


def test_own_shares_only_the_programs_of_the_agents_user() -> None:
    mixed = (Proc(7, docker(1), uid=1000), Proc(8, docker(1), uid=33))
    found = divided(Proc(5, uid=1000), Proc(6, uid=1001), *mixed, around=OWN)
    assert [program.first.pid for program in found.programs] == [5]
    own = 'and share_programs = "own" shares only programs of uid 1000'
    assert {one.program.first.pid: (one.why, one.sentence) for one in found.exempt} == {
        6: (Exempt.OTHER_USER, f"it runs as uid 1001, {own}"),
        7: (Exempt.OWNER_UNKNOWN, f"its processes run as several users, {own}"),
    }


@pytest.mark.parametrize("value", ["no", "No", " false", "off", "0"])
def test_a_container_is_exempt_by_its_label(value: str) -> None:
    labelled = container(f"{1:064x}", **{"gpucommons.share": value})
    found = divided(Proc(5, docker(1)), Proc(6, docker(2)), containers=[labelled])
    assert [(one.program.first.pid, one.why) for one in found.exempt] == [(5, Exempt.LABEL)]
    assert found.exempt[0].sentence == f"its container has the label gpucommons.share={value.strip()}"


def test_other_values_of_the_label_do_not_exempt() -> None:
    labelled = container(f"{1:064x}", **{"gpucommons.share": "yes"})
    assert not divided(Proc(5, docker(1)), containers=[labelled]).exempt


def test_a_pod_is_exempt_by_its_label_where_pod_labels_are_kept() -> None:
    pods = [Pod(pod_uid(1), "serve", "prod", labels={"gpucommons.share": "no"})]
    assert [one.why for one in divided(Proc(5, kubernetes(1, 2)), pods=pods).exempt] == [Exempt.LABEL]


def test_a_rule_exempts_what_it_matches() -> None:
    rules = (ProgramRule("serving", job="7", share=False), ProgramRule("other", user="*"))
    found = divided(Proc(5, slurm(7)), Proc(6, slurm(8)), around=Circumstances(ShareScope.ALL, 0, rules=rules))
    assert [(one.program.key, one.sentence) for one in found.exempt] == [
        ("job:7@1000", "sharing_quotas.serving has share = false")
    ]


def test_one_process_that_cannot_be_paused_is_left_alone_until_it_is_tried_again() -> None:
    """It does not free the others of its job, unless they are on several GPUs and wait for it there."""
    refused = {
        ProcessKey(5, 100): Refusal("not supported (801)", until_s=60.0),
        ProcessKey(6, 99): Refusal("of an earlier process with this pid"),
    }
    around = Circumstances(ShareScope.ALL, 0, refused=refused)
    job = (Proc(5, slurm(7)), Proc(6, slurm(7)))
    found = divided(*job, around=around, now_s=18.0)
    assert [one.sentence for one in found.exempt] == [
        "pid 5 cannot be paused: not supported (801); it is tried again in 42 s"
    ]
    assert [[process.pid for process in one.program.processes] for one in found.exempt] == [[5]]
    assert [[process.pid for process in program.processes] for program in found.programs] == [[6]]
    again = divided(*job, around=around, now_s=60.0)
    assert [[process.pid for process in program.processes] for program in again.programs] == [[5, 6]]
    several = divided(Proc(5, slurm(7)), Proc(6, slurm(7), gpus=(1,)), around=around, now_s=18.0)
    assert not several.programs
    assert [[process.pid for process in one.program.processes] for one in several.exempt] == [[5, 6]]


def test_a_refusal_without_an_end_stands() -> None:
    around = Circumstances(ShareScope.ALL, 0, refused={ProcessKey(5, 100): Refusal("it hangs")})
    assert [one.sentence for one in divided(Proc(5), around=around, now_s=1e9).exempt] == [
        "pid 5 cannot be paused: it hangs"
    ]


def test_a_refusal_is_shown_escaped_and_bounded() -> None:
    around = Circumstances(
        ShareScope.ALL, 0, refused={ProcessKey(5, 100): Refusal("\x1b[2J" + "x" * 500, until_s=60.0)}
    )
    ((_, sentence),) = sentences(divided(Proc(5), around=around)).values()
    assert sentence.isprintable()
    assert len(sentence) < 200
    assert sentence.endswith("it is tried again in 60 s")


def test_no_program_is_paused_on_a_gpu_with_leases_under_mps() -> None:
    device = Node([Proc(10)]).read().processes[0].uses[0].device
    on_mps = Circumstances(ShareScope.ALL, 0, mps_devices=frozenset({device}))
    found = divided(Proc(10), Proc(11, gpus=(1,)), around=on_mps)
    assert [program.first.pid for program in found.programs] == [11]
    ((why, sentence),) = sentences(found).values()
    assert (why, "where no program is paused" in sentence) == (Exempt.MPS, True)
