"""The owner of a process: rules in a configurable order, of which the first that matches names the owner. Pure.

A site's own rules are regular expressions on container name, image, labels and unit.
"""

import re
import tomllib
from collections.abc import Callable, Mapping
from typing import NamedTuple, cast

from gpucommons.model.ownership import Owner, OwnerKind, Workload

# Users choose these names: a long one must not make an expression run for a long time.
_MAX_TEXT = 256
_PLACEHOLDER = re.compile(r"\{(\w*)\}")
_FIELDS = ("container", "image", "unit")


class SiteRuleError(Exception):
    """One line that names the rule and what to change."""


class SiteRule(NamedTuple):
    """`patterns` are by field, `label_patterns` by label; `owner` may contain {group} placeholders."""

    owner: str
    patterns: Mapping[str, re.Pattern[str]]
    label_patterns: Mapping[str, re.Pattern[str]]

    def owner_of(self, fields: Mapping[str, str | None], labels: Mapping[str, str]) -> str | None:
        """The owner that this rule names; None if an expression does not match or the name would be empty."""
        groups: dict[str, str] = {}
        inputs = [(p, fields.get(name)) for name, p in self.patterns.items()]
        inputs += [(p, labels.get(name)) for name, p in self.label_patterns.items()]
        for pattern, text in inputs:
            match = pattern.search(text[:_MAX_TEXT]) if text is not None else None
            if match is None:
                return None
            groups |= {name: value for name, value in match.groupdict().items() if value is not None}
        return _PLACEHOLDER.sub(lambda hole: groups.get(hole[1], ""), self.owner).strip() or None


def parse_site_rules(text: str) -> tuple[SiteRule, ...]:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SiteRuleError(f"not TOML: {error}") from None
    rules = document.get("rule", [])
    if set(document) - {"rule"} or not isinstance(rules, list):
        raise SiteRuleError(
            "unexpected content: only [[rule]] tables are allowed; put each rule below its own [[rule]]"
        )
    return tuple(_rule(number, table) for number, table in enumerate(rules, start=1))


def _rule(number: int, table: object) -> SiteRule:
    if not isinstance(table, dict):
        raise SiteRuleError(f"rule {number} is not a table: put it below [[rule]]")
    if unknown := set(table) - {"owner", "labels", *_FIELDS}:
        raise SiteRuleError(
            f"rule {number}: unknown key '{sorted(unknown)[0]}': use owner, labels, {', '.join(_FIELDS)}"
        )
    owner, labels = table.get("owner"), table.get("labels", {})
    if not isinstance(owner, str) or not owner.strip():
        raise SiteRuleError(f'rule {number}: owner is missing: set it, such as owner = "alice" or owner = "{{user}}"')
    if not isinstance(labels, dict):
        raise SiteRuleError(f"rule {number}: labels: expected a table of label = expression")
    patterns = {name: _pattern(number, name, table[name]) for name in _FIELDS if name in table}
    label_patterns = {name: _pattern(number, name, value) for name, value in labels.items()}
    if not patterns and not label_patterns:
        raise SiteRuleError(f"rule {number} matches everything: add one of {', '.join(_FIELDS)}, labels")
    groups = {g for p in (*patterns.values(), *label_patterns.values()) for g in p.groupindex}
    if missing := {hole[1] for hole in _PLACEHOLDER.finditer(owner)} - groups:
        name = sorted(missing)[0]
        raise SiteRuleError(f"rule {number}: no expression has the group '{name}': add it with (?P<{name}>...)")
    return SiteRule(owner, patterns, label_patterns)


def _pattern(number: int, name: str, value: object) -> re.Pattern[str]:
    try:
        return re.compile(cast(str, value))
    except (re.error, TypeError, RecursionError, OverflowError) as error:
        raise SiteRuleError(f"rule {number}: '{name}' is not a regular expression: {error}") from None


DEFAULT_ORDER = tuple(OwnerKind)
DEFAULT_LABELS = ("gpucommons.owner", "ds01.user", "aime.mlc.USER")


class OwnerRules(NamedTuple):
    """`labels` are the container labels that may name an owner. The first that a container has is used."""

    order: tuple[OwnerKind, ...] = DEFAULT_ORDER
    labels: tuple[str, ...] = DEFAULT_LABELS
    site: tuple[SiteRule, ...] = ()


class Candidate(NamedTuple):
    """A process whose owner is to be found. `delegated`: it runs in a cgroup tree that its user may write."""

    workload: Workload
    labels: Mapping[str, str] = {}
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
    kinds = ", ".join(OwnerKind)
    if not names:
        raise ValueError(f"expected a list of owner rules, got none: use {kinds}")
    for name in names:
        if name not in tuple(OwnerKind):
            raise ValueError(f"unknown owner rule '{name}': use {kinds}")
    if len(set(names)) < len(names):
        raise ValueError("a rule is listed twice")
    return tuple(map(OwnerKind, names))


def _by_site(candidate: Candidate, rules: OwnerRules) -> _RuleResult:
    workload = candidate.workload
    fields = {"container": workload.container_name, "image": workload.image, "unit": workload.unit}
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
