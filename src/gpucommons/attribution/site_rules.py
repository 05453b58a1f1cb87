"""A site's own owner rules: regular expressions on container name, image, labels and unit. Pure.

    [[rule]]
    owner = "{user}"
    container = "^jupyter-(?P<user>[a-z0-9]+)$"

All expressions of a rule must match; the first rule that matches names the owner.
"""

import re
import tomllib
from collections.abc import Mapping
from typing import NamedTuple, cast

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
