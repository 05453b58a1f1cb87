"""An invalid file is refused with its name and line, and nothing is replaced."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucommons.stack.check import ConfigProblem, StackError, problems_in, run_here
from gpucommons.stack.stack import check, prepare
from needs import needs_program
from stack.stacks import settings_on_free_ports, stack_in

GOOD = "groups:\n  - name: x\n    rules:\n      - alert: A\n        expr: up == 0\n"

BROKEN = {
    "an expression that does not end": (GOOD.replace("up == 0", "sum(up"), 5),
    "a key that does not exist": (GOOD + "        fro: 5m\n", 6),
    "no YAML": ("groups:\n  - name: x\n   rules: []\n", None),
    "a template that does not end": (GOOD + '        labels: {a: "{{ $x.y }}"}\n', 4),
    "two documents of rules in one list": (GOOD.replace("expr: up == 0", "expr: [1, 2]"), 5),
    "a duration that is none": (GOOD + "        for: soon\n", None),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_rule_file_is_named_with_its_line(tmp_path: Path, how: str) -> None:
    needs_program("promtool", "amtool")
    text, line = BROKEN[how]
    site = tmp_path / "site"
    site.mkdir()
    (site / "good.yml").write_text(GOOD)
    (site / "mine.yml").write_text(text)
    stack = stack_in(tmp_path / "data", settings_on_free_ports(rules_dir=str(site)))
    problems = check(stack, with_grafana=False, run=run_here)
    assert problems, how
    assert {problem.file for problem in problems} == {str(site / "mine.yml")}
    if line is not None:
        assert problems[0].line == line, problems
    assert ".check-" not in str(problems[0]), "the operator's file is named, not our copy"


def test_invalid_yaml_is_reported_with_its_line(tmp_path: Path) -> None:
    needs_program("promtool", "amtool")
    site = tmp_path / "site"
    site.mkdir()
    (site / "mine.yml").write_text(BROKEN["no YAML"][0])
    stack = stack_in(tmp_path / "data", settings_on_free_ports(rules_dir=str(site)))
    assert all(problem.line is not None for problem in check(stack, with_grafana=False, run=run_here))


def test_nothing_is_replaced_by_a_broken_configuration(tmp_path: Path) -> None:
    needs_program("promtool", "amtool")
    site = tmp_path / "site"
    site.mkdir()
    (site / "mine.yml").write_text(GOOD)
    stack = stack_in(tmp_path / "data", settings_on_free_ports(rules_dir=str(site)))
    prepare(stack, with_grafana=False, run=run_here)
    before = {p: p.read_text() for p in stack.layout.config.rglob("*.yml")}
    (site / "mine.yml").write_text(BROKEN["a key that does not exist"][0])
    changed = stack_in(tmp_path / "data", settings_on_free_ports(rules_dir=str(site)))
    with pytest.raises(StackError, match=r"mine\.yml:6: "):
        prepare(changed, with_grafana=False, run=run_here)
    assert {p: p.read_text() for p in stack.layout.config.rglob("*.yml")} == before
    assert not list(stack.layout.root.glob(".check-*")), "the checked copy is removed"


@given(st.text())
def test_any_output_of_a_tool_is_parsed(output: str) -> None:
    for problem in problems_in(output, lambda file, name: None):
        assert isinstance(problem, ConfigProblem)
        assert problem.message


def test_a_repeated_problem_is_reported_once() -> None:
    said = "  FAILED:\n     r/c.yml: yaml: line 1: bad\n     r/c.yml: yaml: line 1: bad\n"
    assert list(problems_in(said, lambda file, name: None)) == [ConfigProblem("r/c.yml", 1, "bad")]
