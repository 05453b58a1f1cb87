"""The owner of a process: rules in a configurable order, of which the first that matches names the owner. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gpucommons.attribution.site_rules import SiteRule
from gpucommons.model.ownership import Owner, OwnerKind, Workload

DEFAULT_ORDER = tuple(OwnerKind)
DEFAULT_LABELS = ("gpucommons.owner", "ds01.user", "aime.mlc.USER")


class OwnerRules(NamedTuple):
    """`labels` are the container labels that may name an owner. The first that a container has is used."""

    order: tuple[OwnerKind, ...] = DEFAULT_ORDER
    labels: tuple[str, ...] = DEFAULT_LABELS
    site: tuple[SiteRule, ...] = ()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A process whose owner is to be found. `delegated`: it runs in a cgroup tree that its user may write."""

    workload: Workload
    labels: Mapping[str, str] = field(default_factory=dict)
    delegated: bool = False


class OwnerVerdict(NamedTuple):
    owner: Owner | None
    steps: tuple[str, ...]


class _RuleResult(NamedTuple):
    owner: Owner | None
    why: str


def owner_of(candidate: Candidate, rules: OwnerRules) -> OwnerVerdict:
    steps: list[str] = []
    for kind in rules.order:
        if candidate.delegated and kind is not OwnerKind.USER:
            # The user may create cgroups, and name one like another user's pod or container.
            steps.append(f"rule {kind}: skipped, because the cgroup is in a tree that its user may write")
            continue
        owner, why = _RULES[kind](candidate, rules)
        steps.append(f"rule {kind}: {why}")
        if owner is not None:
            return OwnerVerdict(owner, tuple(steps))
    steps.append("no rule names an owner")
    return OwnerVerdict(None, tuple(steps))


def parse_order(text: str) -> tuple[OwnerKind, ...]:
    """Parses a comma-separated list such as `pod,user`. Raises ValueError with one line."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    known = ", ".join(OwnerKind)
    if not names:
        raise ValueError(f"expected a list of owner rules, got none: use {known}")
    for name in names:
        if name not in tuple(OwnerKind):
            raise ValueError(f"unknown owner rule '{name}': use {known}")
    if len(set(names)) < len(names):
        raise ValueError("a rule is listed twice")
    return tuple(map(OwnerKind, names))


def _by_site(candidate: Candidate, rules: OwnerRules) -> _RuleResult:
    found = candidate.workload
    fields = {"container": found.container_name, "image": found.image, "unit": found.unit}
    for number, rule in enumerate(rules.site, start=1):
        if name := rule.owner_of(fields, candidate.labels):
            return _RuleResult(Owner(OwnerKind.SITE, name, name), f"site rule {number} names {name}")
    return _RuleResult(None, "no site rule matches" if rules.site else "there are no site rules")


def _by_pod(candidate: Candidate, _: OwnerRules) -> _RuleResult:
    pod = candidate.workload.pod
    if pod is None:
        return _RuleResult(None, "it is not in a pod")
    if not pod.name:
        return _RuleResult(Owner(OwnerKind.POD, pod.uid, pod.uid), f"pod {pod.uid}, whose name is unknown")
    owner = Owner(OwnerKind.POD, pod.uid, pod.name, pod.namespace)
    return _RuleResult(owner, f"pod {pod.namespace}/{pod.name}")


def _by_label(candidate: Candidate, rules: OwnerRules) -> _RuleResult:
    for label in rules.labels:
        if name := candidate.labels.get(label, "").strip():
            return _RuleResult(Owner(OwnerKind.LABEL, name, name), f"label {label} names {name}")
    return _RuleResult(None, f"its container has none of the labels {', '.join(rules.labels) or '(none configured)'}")


def _by_job(candidate: Candidate, _: OwnerRules) -> _RuleResult:
    job = candidate.workload.job
    if job is None:
        return _RuleResult(None, "it is not in a Slurm job")
    return _RuleResult(Owner(OwnerKind.JOB, job, job), f"Slurm job {job}")


def _by_unit(candidate: Candidate, _: OwnerRules) -> _RuleResult:
    unit = candidate.workload.unit
    if unit is None:
        return _RuleResult(None, "it is not in a systemd unit")
    return _RuleResult(Owner(OwnerKind.UNIT, unit, unit), f"unit {unit}")


def _by_user(candidate: Candidate, _: OwnerRules) -> _RuleResult:
    uid, name = candidate.workload.uid, candidate.workload.user
    if uid is None:
        return _RuleResult(None, "its uid could not be read")
    owner = Owner(OwnerKind.USER, str(uid), name or str(uid))
    return _RuleResult(owner, f"uid {uid} is {name}" if name else f"uid {uid}, which has no user name")


_RULES: Mapping[OwnerKind, Callable[[Candidate, OwnerRules], _RuleResult]] = {
    OwnerKind.SITE: _by_site,
    OwnerKind.POD: _by_pod,
    OwnerKind.LABEL: _by_label,
    OwnerKind.JOB: _by_job,
    OwnerKind.UNIT: _by_unit,
    OwnerKind.USER: _by_user,
}
