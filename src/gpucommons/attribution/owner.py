"""Who owns a process: rules tried in a configurable order, the first that answers names the owner. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gpucommons.attribution.site_rules import SiteRule
from gpucommons.model.ownership import Owner, OwnerKind, Workload

DEFAULT_ORDER = tuple(OwnerKind)
DEFAULT_LABELS = ("gpucommons.owner", "ds01.user", "aime.mlc.USER")


@dataclass(frozen=True, slots=True)
class OwnerRules:
    """`labels` are the container labels that may name an owner, the first that a container has counts."""

    order: tuple[OwnerKind, ...] = DEFAULT_ORDER
    labels: tuple[str, ...] = DEFAULT_LABELS
    site: tuple[SiteRule, ...] = ()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A process about to be given an owner. `delegated`: it runs in a cgroup tree that its user may write."""

    workload: Workload
    labels: Mapping[str, str] = field(default_factory=dict)
    delegated: bool = False


class OwnerVerdict(NamedTuple):
    owner: Owner | None
    steps: tuple[str, ...]


class _Answer(NamedTuple):
    owner: Owner | None
    why: str


def owner_of(candidate: Candidate, rules: OwnerRules) -> OwnerVerdict:
    steps: list[str] = []
    for kind in rules.order:
        if candidate.delegated and kind is not OwnerKind.USER:
            # Whoever may name cgroups could name one after another's pod or container.
            steps.append(f"rule {kind}: not asked, for the cgroup is in a tree that its user may write")
            continue
        owner, why = _RULES[kind](candidate, rules)
        steps.append(f"rule {kind}: {why}")
        if owner is not None:
            return OwnerVerdict(owner, tuple(steps))
    steps.append("no rule names an owner")
    return OwnerVerdict(None, tuple(steps))


def parse_order(text: str) -> tuple[OwnerKind, ...]:
    """A comma list such as `pod,user`. Raises ValueError with one clear line."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    known = ", ".join(OwnerKind)
    if not names:
        raise ValueError(f"names no rule; there are {known}")
    for name in names:
        if name not in tuple(OwnerKind):
            raise ValueError(f"no owner rule '{name}'; there are {known}")
    if len(set(names)) < len(names):
        raise ValueError("names a rule twice")
    return tuple(map(OwnerKind, names))


def _by_site(candidate: Candidate, rules: OwnerRules) -> _Answer:
    found = candidate.workload
    fields = {"container": found.container_name, "image": found.image, "unit": found.unit}
    for number, rule in enumerate(rules.site, start=1):
        if name := rule.owner_of(fields, candidate.labels):
            return _Answer(Owner(OwnerKind.SITE, name, name), f"the site's rule {number} names {name}")
    return _Answer(None, "none of the site's rules fits" if rules.site else "the site has none")


def _by_pod(candidate: Candidate, _: OwnerRules) -> _Answer:
    pod = candidate.workload.pod
    if pod is None:
        return _Answer(None, "it is in no pod")
    if not pod.name:
        return _Answer(Owner(OwnerKind.POD, pod.uid, pod.uid), f"pod {pod.uid}, whose name is not known")
    owner = Owner(OwnerKind.POD, pod.uid, pod.name, pod.namespace)
    return _Answer(owner, f"pod {pod.namespace}/{pod.name}")


def _by_label(candidate: Candidate, rules: OwnerRules) -> _Answer:
    for label in rules.labels:
        if name := candidate.labels.get(label, "").strip():
            return _Answer(Owner(OwnerKind.LABEL, name, name), f"label {label} names {name}")
    return _Answer(None, f"its container has none of {', '.join(rules.labels) or 'no labels'}")


def _by_job(candidate: Candidate, _: OwnerRules) -> _Answer:
    job = candidate.workload.job
    if job is None:
        return _Answer(None, "it is in no Slurm job")
    return _Answer(Owner(OwnerKind.JOB, job, job), f"Slurm job {job}")


def _by_unit(candidate: Candidate, _: OwnerRules) -> _Answer:
    unit = candidate.workload.unit
    if unit is None:
        return _Answer(None, "it is in no unit of its own")
    return _Answer(Owner(OwnerKind.UNIT, unit, unit), f"unit {unit}")


def _by_user(candidate: Candidate, _: OwnerRules) -> _Answer:
    uid, name = candidate.workload.uid, candidate.workload.user
    if uid is None:
        return _Answer(None, "its uid could not be read")
    owner = Owner(OwnerKind.USER, str(uid), name or str(uid))
    return _Answer(owner, f"uid {uid} is {name}" if name else f"uid {uid}, which has no name here")


_RULES: Mapping[OwnerKind, Callable[[Candidate, OwnerRules], _Answer]] = {
    OwnerKind.SITE: _by_site,
    OwnerKind.POD: _by_pod,
    OwnerKind.LABEL: _by_label,
    OwnerKind.JOB: _by_job,
    OwnerKind.UNIT: _by_unit,
    OwnerKind.USER: _by_user,
}
