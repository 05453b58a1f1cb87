"""The owner of a process: the first rule of the order that matches, and why."""

import pytest

from gpucommons.model.ownership import Owner, OwnerKind, PodPlace, Workload
from gpucommons.owners.owner import DEFAULT_ORDER, Candidate, OwnerRules, owner_of, parse_order, parse_site_rules

EVERYTHING = Workload(
    process_name="python",
    uid=1000,
    user="alice",
    container_id="c" * 64,
    container_name="jupyter-bob",
    image="torch",
    pod=PodPlace("uid-1", "train-0", "ml", "main"),
    job="4242",
    unit="jupyter.service",
)
LABELS = {"ds01.user": "carol"}
SITE = parse_site_rules('[[rule]]\nowner = "{u}"\ncontainer = "^jupyter-(?P<u>.+)$"\n')

OWNERS = {
    OwnerKind.SITE: Owner(OwnerKind.SITE, "bob", "bob"),
    OwnerKind.POD: Owner(OwnerKind.POD, "uid-1", "train-0", "ml"),
    OwnerKind.LABEL: Owner(OwnerKind.LABEL, "carol", "carol"),
    OwnerKind.JOB: Owner(OwnerKind.JOB, "4242", "4242"),
    OwnerKind.UNIT: Owner(OwnerKind.UNIT, "jupyter.service", "jupyter.service"),
    OwnerKind.USER: Owner(OwnerKind.USER, "1000", "alice"),
}


@pytest.mark.parametrize("kind", OwnerKind)
def test_each_rule_alone(kind: OwnerKind) -> None:
    verdict = owner_of(Candidate(EVERYTHING, LABELS), OwnerRules((kind,), site=SITE))
    assert verdict.owner == OWNERS[kind]
    assert len(verdict.steps) == 1


@pytest.mark.parametrize("kind", OwnerKind)
def test_no_rule_matches_an_unknown_process(kind: OwnerKind) -> None:
    verdict = owner_of(Candidate(Workload()), OwnerRules((kind,), site=SITE))
    assert verdict.owner is None
    assert verdict.steps[-1] == "no rule names an owner"


def test_the_default_order() -> None:
    assert DEFAULT_ORDER == ("site", "pod", "label", "job", "unit", "user")
    assert owner_of(Candidate(EVERYTHING, LABELS), OwnerRules()).owner == OWNERS[OwnerKind.POD]


def test_the_order_is_configurable() -> None:
    rules = OwnerRules(parse_order("job, pod"))
    assert owner_of(Candidate(EVERYTHING, LABELS), rules).owner == OWNERS[OwnerKind.JOB]


def test_every_rule_that_was_tried_is_explained() -> None:
    steps = owner_of(Candidate(Workload(uid=7)), OwnerRules()).steps
    assert [step.split(":")[0] for step in steps] == [f"rule {kind}" for kind in DEFAULT_ORDER]


def test_the_labels_are_configurable() -> None:
    labels = {"ds01.user": " ", "team": "vision", "gpucommons.owner": "dave"}
    only_labels = (OwnerKind.LABEL,)
    assert owner_of(Candidate(Workload(), labels), OwnerRules(only_labels)).owner == Owner(
        OwnerKind.LABEL, "dave", "dave"
    )
    chosen = OwnerRules(only_labels, labels=("ds01.user", "team"))
    assert owner_of(Candidate(Workload(), labels), chosen).owner == Owner(OwnerKind.LABEL, "vision", "vision")
    assert owner_of(Candidate(Workload(), labels), OwnerRules(only_labels, labels=())).owner is None


def test_a_user_without_a_name_is_its_number() -> None:
    owner = owner_of(Candidate(Workload(uid=100999)), OwnerRules()).owner
    assert owner == Owner(OwnerKind.USER, "100999", "100999")


def test_a_pod_without_a_name_is_its_uid() -> None:
    owner = owner_of(Candidate(Workload(pod=PodPlace("uid-1"))), OwnerRules()).owner
    assert owner == Owner(OwnerKind.POD, "uid-1", "uid-1")


def test_in_a_cgroup_tree_that_the_user_may_write_only_the_user_rule_applies() -> None:
    """A cgroup there can be named like any pod, container or job."""
    verdict = owner_of(Candidate(EVERYTHING, LABELS, delegated=True), OwnerRules(site=SITE))
    assert verdict.owner == OWNERS[OwnerKind.USER]


@pytest.mark.parametrize(
    ("text", "says"), [("", "got none"), (",", "got none"), ("pod,pood", "'pood'"), ("pod,pod", "twice")]
)
def test_an_invalid_order_is_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_order(text)
