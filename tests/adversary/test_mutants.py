"""The mutation runner: which changes it makes, and that it sees whether tests notice them."""

import ast
import importlib
from pathlib import Path

import pytest

from adversary import mutants as runner
from adversary.mutants import SUBJECTS, Subject, mutants, mutated, outcome

SOURCE = '''
"""Text."""
LIMIT: int = 3


def due(age_s: float, is_kept: bool) -> bool:
    """Text 5."""
    if is_kept and age_s < LIMIT:
        log.info("aged %d", 1)
        return False
    return max(age_s, 1.0) >= 2 * LIMIT
'''


def test_each_decision_is_changed_and_texts_are_not() -> None:
    found = [mutant.change for mutant in mutants(SOURCE)]
    assert "3 -> 4" in found
    assert "age_s < LIMIT -> age_s <= LIMIT" in found
    assert "is_kept and age_s < LIMIT -> is_kept or age_s < LIMIT" in found
    assert "is_kept and age_s < LIMIT -> is_kept and is_kept" in found
    assert "max(age_s, 1.0) -> min(age_s, 1.0)" in found
    assert "2 * LIMIT -> 2 / LIMIT" in found
    assert any(change.startswith("if is_kept") and "if False" in change for change in found)
    assert not any("aged" in change and "1 -> 2" in change for change in found)
    sources = [mutated(SOURCE, mutant) for mutant in mutants(SOURCE)]
    assert len(set(sources) - {ast.unparse(ast.parse(SOURCE))}) == len(sources), "each differs from all others"


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.module)
def test_the_modules_and_their_tests_exist(subject: Subject) -> None:
    assert (runner.ROOT / subject.module).is_file()
    assert subject.tests
    assert all((runner.ROOT / test).is_file() for test in subject.tests)


@pytest.mark.long
def test_a_change_that_a_test_knows_is_killed_also_where_the_module_was_imported_before() -> None:
    subject = next(each for each in SUBJECTS if each.module.endswith("idle/escalation.py"))
    importlib.import_module(subject.name)
    source = (runner.ROOT / subject.module).read_text("utf-8")
    assert outcome(subject, source) == 0
    killed = source.replace("if done is None:\n        return IdleStep.NOTIFY", "if done is None:\n        return None")
    assert killed != source
    assert outcome(subject, killed) == 1


def test_programs_that_a_test_starts_have_the_changed_module_too(tmp_path: Path) -> None:
    test = tmp_path / "test_in_a_process.py"
    test.write_text(
        "import subprocess, sys\n"
        "def test_it() -> None:\n"
        "    subprocess.run([sys.executable, '-P', '-c', 'from gpucommons.base.backoff import CHANGED'], check=True)\n"
    )
    subject = Subject("src/gpucommons/base/backoff.py", (str(test),))
    assert outcome(subject, "CHANGED = True") == 0
    assert outcome(subject, "") == 1
