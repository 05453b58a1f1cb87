"""The mutation runner: which changes it makes, and that it sees whether tests notice them."""

import ast
import importlib
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from adversary import mutants as runner
from adversary.mutants import SUBJECTS, Seen, Subject, judging, look, mutants, mutated, outcome, traced

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


def test_a_mutant_knows_its_function_and_is_judged_by_the_tests_that_enter_it() -> None:
    assert {mutant.function for mutant in mutants(SOURCE)} == {None, 6}
    seen = {
        "slow": Seen(2.0, frozenset({("m.py", 6)}), starts_programs=False),
        "fast": Seen(1.0, frozenset({("m.py", 6), ("n.py", 9)}), starts_programs=False),
        "elsewhere": Seen(0.1, frozenset({("n.py", 6)}), starts_programs=False),
        "program": Seen(3.0, frozenset(), starts_programs=True),
    }
    assert judging(seen, "m.py", 6) == ["fast", "slow", "program"]
    assert judging(seen, "m.py", None) == ["elsewhere", "fast", "slow", "program"], "a constant: any of them"
    assert judging({"elsewhere": seen["elsewhere"]}, "m.py", 6) == []


def test_functions_note_that_they_are_entered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.entered", set(), raising=False)
    names: dict[str, Any] = {"log": logging.getLogger(__name__)}
    exec(traced(SOURCE, "m.py"), names)
    assert not vars(sys)["entered"]
    assert names["due"](9.0, False)
    assert vars(sys)["entered"] == {("m.py", 6)}
    assert names["due"].__doc__ == "Text 5."


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
    assert outcome(subject, source).status == 0
    killed = source.replace("if done is None:\n        return IdleStep.NOTIFY", "if done is None:\n        return None")
    assert killed != source
    result = outcome(subject, killed)
    assert result.status == 1
    assert result.failed is not None
    assert result.failed.startswith("tests/idle/test_escalation.py::")


def test_programs_that_a_test_starts_have_the_changed_module_too(tmp_path: Path) -> None:
    test = tmp_path / "test_in_a_process.py"
    test.write_text(
        "import subprocess, sys\n"
        "def test_it() -> None:\n"
        "    subprocess.run([sys.executable, '-P', '-c', 'from gpucommons.base.backoff import CHANGED'], check=True)\n"
    )
    subject = Subject("src/gpucommons/base/backoff.py", (str(test),))
    assert outcome(subject, "CHANGED = True").status == 0
    assert outcome(subject, "").status == 1


def test_a_run_without_a_change_shows_what_each_test_enters_and_starts(tmp_path: Path) -> None:
    test = tmp_path / "test_backoff.py"
    test.write_text(
        "import subprocess\n"
        "from gpucommons.base.backoff import RetrySchedule\n"
        "def test_one() -> None:\n"
        "    RetrySchedule(1.0, 2.0).reset()\n"
        "def test_other() -> None:\n"
        "    subprocess.run(['true'], check=True)\n"
    )
    subject = Subject("src/gpucommons/base/backoff.py", (str(test),))
    one, other = look([subject]).values()
    assert {module for module, _ in one.functions} == {subject.module}
    assert not one.starts_programs
    assert not other.functions
    assert other.starts_programs


def test_a_thread_that_ends_with_an_exception_fails_its_test_at_once(tmp_path: Path) -> None:
    test = tmp_path / "test_thread.py"
    test.write_text(
        "import threading\n"
        "def test_it() -> None:\n"
        "    threading.Thread(target=lambda: {}[0]).start()\n"
        "    threading.Event().wait()\n"
    )
    subject = Subject("src/gpucommons/base/backoff.py", (str(test),))
    result = outcome(subject, "")
    assert result.status == 1
    assert result.failed is not None
    assert result.failed.endswith("::test_it")


@pytest.mark.parametrize(
    ("body", "stalled_s"),
    [("while True: pass", 60.0), ("import threading; threading.Event().wait()", 1.0)],
    ids=["loops", "waits"],
)
def test_a_change_without_an_end_is_noticed(
    body: str, stalled_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_STALLED_S", stalled_s)
    test = tmp_path / "test_endless.py"
    test.write_text(f"def test_it() -> None:\n    {body}\n")
    subject = Subject("src/gpucommons/base/backoff.py", (str(test),))
    result = outcome(subject, "", cpu_s=2.0)
    assert result.status is None
    assert result.failed is not None
    assert result.failed.endswith("::test_it")
