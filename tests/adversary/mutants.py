"""Mutants: one small change in code that decides, and the nearest tests have to fail.

    python -m adversary.mutants [SECONDS [SEED [WORD]]]

Takes mutants at random for the given time, of the modules whose path contains WORD, and prints for each module how many
the tests have killed, and every one that survived. A survivor is a behaviour that no test knows, or a change without an
effect: a person has to judge that. The seed is printed: with it, the same mutants come in the same order.

Each mutant is a fork, which imports the project again with the changed source of one module. So does every program that
its tests start with this Python: a `sitecustomize` of the mutant is first on the path. No file of ours is written.
"""

import ast
import contextlib
import copy
import importlib
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
# A mutant may loop without an end.
_LONGEST_S: Final = 120.0
_ALL_PASSED: Final = 0
_SOME_FAILED: Final = 1


class Subject(NamedTuple):
    """A module that decides, and the tests that are nearest to it; both below the root."""

    module: str
    tests: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.module.removeprefix("src/").removesuffix(".py").replace("/", ".")


def _subject(module: str, *tests: str) -> Subject:
    return Subject(f"src/gpucommons/{module}.py", tuple(f"tests/{test}.py" for test in tests))


SUBJECTS: Final = (
    _subject("leases/policy/plan", "leases/test_queue", "leases/test_service"),
    _subject("leases/policy/queue", "leases/test_queue", "leases/test_service"),
    _subject("leases/service/limits", "leases/test_limits"),
    _subject("idle/escalation", "idle/test_escalation"),
    _subject("base/peers", "scheduler/test_peer_budget", "scheduler/test_admins", "base/test_line_server"),
    _subject("base/line_server", "base/test_line_server", "leases/test_server"),
    _subject("ledger/integrate", "ledger/test_integrate", "ledger/test_usage"),
    _subject("scheduler/corun/coruns", "scheduler/corun/test_coruns", "scheduler/test_classes"),
    _subject("scheduler/corun/accounts", "scheduler/corun/test_coruns", "scheduler/test_classes"),
    _subject("scheduler/policy/quotas", "scheduler/test_quotas"),
    _subject("scheduler/policy/quota_bucket", "scheduler/test_quota_accuracy"),
    _subject("scheduler/policy/core_limits", "scheduler/test_quota_accuracy", "scheduler/test_policy"),
    _subject("scheduler/policy/evaluation", "scheduler/test_policy", "scheduler/test_policy_fairness"),
    _subject("scheduler/parking/plan", "parking/test_plan", "parking/test_arrivals", "parking/test_expected"),
    _subject("scheduler/parking/turns", "parking/test_turns", "parking/test_attained", "parking/test_plan"),
    _subject("pauser/counters", "pauser/test_counters", "pauser/test_small_parts"),
    _subject("owners/slots", "holding/test_slots", "holding/test_allocations"),
    _subject("owners/slot_states", "holding/test_slot_states", "holding/test_idle_periods"),
    _subject("owners/allocations", "holding/test_allocations", "holding/test_ds01_rules"),
    _subject("rules/privacy", "rules/test_privacy"),
)


class Mutant(NamedTuple):
    """`change` is one line: what was changed into what. `node` and `variant` say where in the tree."""

    line: int
    change: str
    node: int
    variant: int


_COMPARISONS: Final = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_OPERATORS: Final = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}
_SWAPPED: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}


def mutants(source: str) -> list[Mutant]:
    """Every change that is tried. Pure."""
    found = []
    for number, node in enumerate(_decisions(ast.parse(source))):
        for variant in range(len(_changes(node))):
            changed = copy.deepcopy(node)
            _changes(changed)[variant](changed)
            change = f"{_short(ast.unparse(node))} -> {_short(ast.unparse(changed))}"
            found.append(Mutant(node.lineno, change, number, variant))
    return found


def mutated(source: str, mutant: Mutant) -> str:
    """The source with this change, without comments. Pure."""
    tree = ast.parse(source)
    target = next(each for number, each in enumerate(_decisions(tree)) if number == mutant.node)
    _changes(target)[mutant.variant](target)
    return ast.unparse(tree)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 90 else line[:89] + "…"


def _decisions(tree: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """The nodes that can be changed, in a fixed order; without annotations, docstrings, decorators and messages."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.expr | ast.stmt) and _changes(node):
            yield node
        yield from _decisions(_without_texts(node))


def _without_texts(node: ast.AST) -> ast.AST:
    """A list of the children in which behaviour is; the nodes themselves are the same."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return ast.Module([*node.body], [])
    if isinstance(node, ast.ClassDef):
        return ast.Module([each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)], [])
    if isinstance(node, ast.AnnAssign):
        return ast.Module([] if node.value is None else [ast.Expr(node.value)], [])
    if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert) or _is_log(node):
        return ast.Module([], [])
    return node


def _is_log(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and ast.unparse(node).startswith("log.")


def _changes(node: ast.AST) -> Sequence[Callable[..., None]]:
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARISONS:
        return (_change_comparison,)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return (_change_operator,)
    if isinstance(node, ast.AugAssign) and type(node.op) in _OPERATORS:
        return (_change_operator,)
    if isinstance(node, ast.BoolOp):
        return (_change_conjunction, _drop_last)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _SWAPPED:
        return (_swap_function,)
    if isinstance(node, ast.If):
        return (_never, _always)
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return (_change_constant,)
    return ()


def _change_comparison(node: ast.Compare) -> None:
    node.ops[0] = _COMPARISONS[type(node.ops[0])]()


def _change_operator(node: ast.BinOp | ast.AugAssign) -> None:
    node.op = _OPERATORS[type(node.op)]()


def _change_conjunction(node: ast.BoolOp) -> None:
    node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()


def _drop_last(node: ast.BoolOp) -> None:
    node.values = node.values[:-1] * 2 if len(node.values) == 2 else node.values[:-1]


def _swap_function(node: ast.Call) -> None:
    assert isinstance(node.func, ast.Name)
    node.func.id = _SWAPPED[node.func.id]


def _never(node: ast.If) -> None:
    node.test = ast.Constant(False)


def _always(node: ast.If) -> None:
    node.test = ast.Constant(True)


def _change_constant(node: ast.Constant) -> None:
    value = node.value
    assert isinstance(value, int | float)
    node.value = not value if isinstance(value, bool) else value + 1


# Running the tests against a mutant.


# Python imports it when it starts, before anything of the project.
_SITE: Final = """
import importlib.abc, importlib.util, sys


class Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        return importlib.util.spec_from_loader(name, self, origin={path!r}) if name == {name!r} else None

    def exec_module(self, module):
        module.__file__ = {path!r}
        exec(compile({source!r}, {path!r}, "exec"), module.__dict__)


sys.meta_path.insert(0, Changed())
"""


def outcome(subject: Subject, source: str) -> int | None:
    """The exit status of the tests with this source of the module; None if they did not end in time."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        child = os.fork()
        if not child:
            os.setsid()
            _run_tests(subject, source, Path(folder))
        deadline_s = time.monotonic() + _LONGEST_S
        while time.monotonic() < deadline_s:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return None


def _run_tests(subject: Subject, source: str, folder: Path) -> None:
    """In the child. Does not return. What the tests write goes into the folder."""
    import pytest

    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silence, stream)
    os.environ["TEST_EXAMPLES"] = "25"
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    _forget_the_project()
    _change_imports(subject, source, folder)
    status = 70
    with contextlib.suppress(BaseException):
        options = ("-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not long")
        status = int(pytest.main([*options, *(str(ROOT / test) for test in subject.tests)]))
    os._exit(status)


def _forget_the_project() -> None:
    """The fork of a process that has imported the module, or a test of it, would use the unchanged one."""
    ours = (str(ROOT / "src"), str(ROOT / "tests"))
    for name, module in list(sys.modules.items()):
        if name != __name__ and str(getattr(module, "__file__", "")).startswith(ours):
            del sys.modules[name]


def _change_imports(subject: Subject, source: str, folder: Path) -> None:
    site = folder / "sitecustomize.py"
    site.write_text(_SITE.format(name=subject.name, path=str(ROOT / subject.module), source=source), "utf-8")
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    exec(compile(site.read_text("utf-8"), str(site), "exec"), {})


class Counts(NamedTuple):
    killed: int = 0
    survived: int = 0


def hunt(seconds: float, seed: int, word: str = "") -> dict[str, Counts]:
    """Prints each survivor as it is found."""
    subjects = [subject for subject in SUBJECTS if word in subject.module]
    # Read once: the files may be edited meanwhile.
    sources = {subject: (ROOT / subject.module).read_text("utf-8") for subject in subjects}
    chances = [(subject, mutant) for subject in subjects for mutant in mutants(sources[subject])]
    random.Random(seed).shuffle(chances)
    _show(f"{len(chances):,} mutants of {len(subjects)} modules, {seconds:g} s, seed {seed}")
    for subject in subjects:
        if outcome(subject, sources[subject]) != _ALL_PASSED:
            raise SystemExit(f"{subject.module}: its tests fail without a change: {', '.join(subject.tests)}")
    counts = {subject.module: Counts() for subject in subjects}
    until_s = time.monotonic() + seconds
    for subject, mutant in chances:
        if time.monotonic() >= until_s:
            break
        found, before = outcome(subject, mutated(sources[subject], mutant)), counts[subject.module]
        if found == _ALL_PASSED:
            counts[subject.module] = before._replace(survived=before.survived + 1)
            _show(f"survived: {subject.module}:{mutant.line}: {mutant.change}")
        else:
            counts[subject.module] = before._replace(killed=before.killed + 1)
    for module, count in counts.items():
        _show(f"{module}: {count.killed} killed, {count.survived} survived")
    total = Counts(sum(each.killed for each in counts.values()), sum(each.survived for each in counts.values()))
    _show(f"in all: {total.killed} killed, {total.survived} survived")
    return counts


def _show(line: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {line}\n")
    sys.stdout.flush()


def main(given: Sequence[str]) -> None:
    # Imported before the forks, which then start in a fraction of the time.
    importlib.import_module("hypothesis")
    importlib.import_module("pytest")
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
    os.chdir(ROOT)
    seconds = float(given[0]) if given else 300.0
    seed = int(given[1]) if given[1:] else random.getrandbits(30)
    hunt(seconds, seed, given[2] if given[2:] else "")


if __name__ == "__main__":
    main(sys.argv[1:])
