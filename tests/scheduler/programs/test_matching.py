"""Rules and targets: which programs they mean."""

from dataclasses import replace

import pytest

from attribution.builders import GIB, container, pod
from gpucommons.model.process_identity import ProcessContext
from gpucommons.model.words import SharingClass
from gpucommons.scheduler.policy.quotas import QuotaValues
from gpucommons.scheduler.programs.jobs import Program
from gpucommons.scheduler.programs.matching import (
    CLASS_LABEL,
    ProgramRule,
    class_of_label,
    class_of_lease,
    exempting_rule,
    names,
    pod_of,
    quota_of,
)
from scheduler.programs.node import Proc, docker, kubernetes, pod_uid, program_of, rootless, slurm, unit

TRAIN = ProcessContext(("python3", "-u", "train.py", "--model", "vit"))
BARE = program_of(Proc(5, context=TRAIN))
IN_JOB = program_of(Proc(6, slurm(88), uid=1001))
IN_UNIT = program_of(Proc(7, unit("ollama.service"), uid=998, name="ollama"))
IN_DOCKER = program_of(Proc(8, docker(1)), containers=[container(f"{1:064x}", "train-vit")])
IN_POD = program_of(Proc(9, kubernetes(1, 2), uid=0), pods=[pod(pod_uid(1), "train-0", "ml", main=f"{2:064x}")])
FORGED = program_of(Proc(10, rootless(1001, 1), uid=1001), containers=[container(f"{1:064x}", "train-vit")])
EVERY = (BARE, IN_JOB, IN_UNIT, IN_DOCKER, IN_POD, FORGED)


@pytest.mark.parametrize(
    ("patterns", "matched"),
    [
        ({}, EVERY),
        ({"user": "ali*"}, (BARE, IN_DOCKER)),
        ({"user": "?*"}, (BARE, IN_JOB, IN_UNIT, IN_DOCKER, FORGED)),
        ({"uid": "100?"}, (BARE, IN_JOB, IN_DOCKER, FORGED)),
        ({"uid": "0"}, (IN_POD,)),
        ({"group": "students"}, (IN_JOB, FORGED)),
        ({"container": "train-*"}, (IN_DOCKER,)),
        ({"container": f"{1:064x}"}, (IN_DOCKER,)),
        ({"container": "main"}, (IN_POD,)),
        ({"pod": "train-*"}, (IN_POD,)),
        ({"namespace": "ml"}, (IN_POD,)),
        ({"job": "88"}, (IN_JOB,)),
        ({"unit": "ollama.*"}, (IN_UNIT,)),
        ({"command": "train.py"}, (BARE,)),
        ({"command": "*--model vit*"}, (BARE,)),
        ({"command": "python3"}, (BARE, IN_JOB, IN_DOCKER, IN_POD, FORGED)),
        ({"user": "alice", "command": "train.py"}, (BARE,)),
        ({"user": "bob", "command": "train.py"}, ()),
    ],
)
def test_what_a_rule_matches(patterns: dict[str, str], matched: tuple[Program, ...]) -> None:
    rule = ProgramRule("rule", **patterns)  # type: ignore[arg-type]
    assert [program.key for program in EVERY if rule.matches(program)] == [program.key for program in matched]


def test_a_rule_must_match_each_user_of_a_program_but_any_of_its_commands() -> None:
    program = program_of(Proc(5, docker(1), uid=1000), Proc(6, docker(1), uid=1001, context=TRAIN))
    assert not ProgramRule("rule", user="alice").matches(program)
    assert ProgramRule("rule", group="lab").matches(program)
    assert ProgramRule("rule", command="train.py").matches(program)


def test_memory_and_share_come_from_the_first_rule_that_sets_them() -> None:
    rules = (
        ProgramRule("others", user="bob", quota=QuotaValues(GIB, 5)),
        ProgramRule("training", command="train.py", quota=QuotaValues(core_percent=50)),
        ProgramRule("alice", user="alice", quota=QuotaValues(8 * GIB, 25)),
        ProgramRule("all", quota=QuotaValues(2 * GIB, 10)),
    )
    assert quota_of(rules, BARE) == QuotaValues(8 * GIB, 50)
    assert quota_of(rules, IN_UNIT) == QuotaValues(2 * GIB, 10)
    assert quota_of((), BARE) == QuotaValues()


def test_any_matching_rule_may_exempt() -> None:
    share, exempt = ProgramRule("first", user="alice"), ProgramRule("second", command="train.py", share=False)
    assert exempting_rule((share, exempt), BARE) is exempt
    assert exempting_rule((share, replace(exempt, share=True)), BARE) is None
    assert exempting_rule((share, exempt), IN_JOB) is None


@pytest.mark.parametrize(
    ("target", "programs"),
    [
        ("pid:5", (BARE,)),
        ("process:5.100", (BARE,)),
        ("user:alice", (BARE, IN_DOCKER)),
        ("uid:1001", (IN_JOB, FORGED)),
        ("group:lab", (BARE, IN_JOB, IN_DOCKER, FORGED)),
        ("job:88", (IN_JOB,)),
        ("job:88@1001", (IN_JOB,)),
        ("unit:ollama.service", (IN_UNIT,)),
        ("container:train-vit", (IN_DOCKER,)),
        ("container:000000000000", (IN_DOCKER, IN_POD)),
        ("command:train.py", (BARE,)),
        ("namespace:ml", (IN_POD,)),
        ("train-0", (IN_POD,)),
        ("ml/train-0", (IN_POD,)),
        ("user:", ()),
        ("", ()),
        ("pid:51", ()),
    ],
)
def test_targets_of_an_operator(target: str, programs: tuple[Program, ...]) -> None:
    assert [program.key for program in EVERY if target in names(program)] == [program.key for program in programs]


def test_every_name_of_a_program() -> None:
    assert names(BARE) == {
        "process:5.100",
        "pid:5",
        "user:alice",
        "uid:1000",
        "group:vision",
        "group:lab",
        "command:train.py",
    }


def test_the_pod_whose_annotations_apply() -> None:
    assert pod_of(IN_POD) == ("ml", "train-0")
    assert pod_of(BARE) is None
    assert pod_of(program_of(Proc(9, kubernetes(1, 2)))) is None, "only the UID of its pod is known"


def test_the_class_comes_from_a_rule_the_label_or_the_lease() -> None:
    labelled = Program("job", tuple(replace(one, labels={CLASS_LABEL: " Latency "}) for one in IN_DOCKER.processes))
    wrong = Program("job", tuple(replace(one, labels={CLASS_LABEL: "urgent"}) for one in IN_DOCKER.processes))
    leased = Program("job", tuple(replace(one, lease_class="background") for one in BARE.processes))
    rules = (ProgramRule("all"), ProgramRule("b", quota=QuotaValues(sharing_class=SharingClass.BACKGROUND)))
    assert class_of_label(labelled).sharing_class is SharingClass.LATENCY
    assert class_of_label(wrong).sharing_class is None
    assert class_of_lease(leased).sharing_class is SharingClass.BACKGROUND
    assert class_of_lease(labelled).sharing_class is None
    assert quota_of(rules, BARE).sharing_class is SharingClass.BACKGROUND
