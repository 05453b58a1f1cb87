"""Site rules: what they match, the owners they name, and a one-line error for each mistake."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucommons.owners.owner import SiteRuleError, parse_site_rules

JUPYTER = """
[[rule]]
owner = "{user}"
container = "^jupyter-(?P<user>[a-z0-9]+)$"
"""


def owner(text: str, labels: dict[str, str] | None = None, **fields: str | None) -> str | None:
    rules = parse_site_rules(text)
    return next((name for rule in rules if (name := rule.owner_of(fields, labels or {}))), None)


def test_a_group_names_the_owner() -> None:
    assert owner(JUPYTER, container="jupyter-alice") == "alice"
    assert owner(JUPYTER, container="jupyter-Alice") is None
    assert owner(JUPYTER, container=None) is None
    assert owner(JUPYTER, image="jupyter-alice") is None


def test_all_expressions_of_a_rule_must_match() -> None:
    text = """
    [[rule]]
    owner = "{team}/{kind}"
    image = "^registry/(?P<team>[a-z]+)/"
    labels = { "com.example.kind" = "^(?P<kind>train|serve)$" }
    """
    assert owner(text, {"com.example.kind": "train"}, image="registry/vision/x") == "vision/train"
    assert owner(text, {"com.example.kind": "play"}, image="registry/vision/x") is None
    assert owner(text, {}, image="registry/vision/x") is None


def test_the_first_rule_that_matches_is_used() -> None:
    text = '[[rule]]\nowner = "one"\nunit = "a"\n[[rule]]\nowner = "two"\nunit = "b"\n'
    assert owner(text, unit="ab") == "one"
    assert owner(text, unit="b") == "two"


def test_an_empty_name_is_not_an_owner() -> None:
    assert owner('[[rule]]\nowner = "{user}"\nunit = "^x(?P<user>.*)$"\n', unit="x") is None
    assert owner('[[rule]]\nowner = "{user}"\nunit = "^x(?P<user>y)?"\n', unit="x") is None


def test_the_text_of_a_group_is_not_a_template() -> None:
    assert owner('[[rule]]\nowner = "{user}"\nunit = "(?P<user>.+)"\n', unit="{user}") == "{user}"


def test_no_rules() -> None:
    assert parse_site_rules("") == ()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x", "not TOML"),
        ("[owner]\n", "[[rule]]"),
        ("rule = 3", "[[rule]]"),
        ("rule = [3]", "rule 1 is not a table"),
        ('[[rule]]\nunit = "a"', "rule 1: owner is missing"),
        ('[[rule]]\nowner = ""\nunit = "a"', "rule 1: owner is missing"),
        ('[[rule]]\nowner = "a"', "matches everything"),
        ('[[rule]]\nowner = "a"\nuint = "a"', "unknown key 'uint'"),
        ('[[rule]]\nowner = "a"\nunit = "("', "not a regular expression"),
        ('[[rule]]\nowner = "a"\nunit = 5', "not a regular expression"),
        ('[[rule]]\nowner = "a"\nlabels = "x"', "labels: expected a table"),
        ('[[rule]]\nowner = "{who}"\nunit = "a"', "(?P<who>...)"),
        ('[[rule]]\nowner = "{}"\nunit = "a"', "group ''"),
    ],
)
def test_a_mistake_is_a_one_line_error(text: str, says: str) -> None:
    with pytest.raises(SiteRuleError) as caught:
        parse_site_rules(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.text(), st.dictionaries(st.text(), st.text()))
def test_any_name_can_be_matched(name: str, labels: dict[str, str]) -> None:
    owner(JUPYTER, labels, container=name, image=name, unit=name)


def test_a_long_name_is_truncated() -> None:
    """Otherwise an expression that backtracks could run for a very long time."""
    assert owner('[[rule]]\nowner = "x"\nunit = "b$"\n', unit="a" * 10_000 + "b") is None
