"""Mutants: one small change in code that decides, and the nearest tests have to fail.

    python -m adversary.mutants [SECONDS [SEED [WORD ...]]]

Takes mutants at random for the given time, of the modules whose path contains one of the words, and prints for each
module how many the tests have killed, and every one that survived. A survivor is a behaviour that no test knows, or a
change without an effect: a person has to judge that. The seed is printed: with it, the same mutants come in the same
order.

Each mutant is a fork, which imports the project again with the changed source of one module. So does every program that
its tests start with this Python: a `sitecustomize` of the mutant is first on the path. No file of ours is written.

The tests run once without a change first. That shows which functions each test enters and what it costs: a mutant is
judged by the tests that enter its function and by those that start programs, the cheapest first. A mutant may loop
without an end. Limits are in time of the processor, as multiples of the run without a change: on a busy machine a run
takes ten times as long, but does not use more of the processor.
"""

import ast
import contextlib
import copy
import importlib
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
# Of the processor: as a multiple of the tests without a change, and in addition.
_CPU_FACTOR: Final = 3.0
_CPU_SLACK_S: Final = 10.0
# The tests without a change.
_BASELINE_CPU_S: Final = 120.0
# A process that waits for something that does not come uses no time at all.
_STALLED_S: Final = 60.0
_ALL_PASSED: Final = 0
_SOME_FAILED: Final = 1
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


class Subject(NamedTuple):
    """A module that decides, and the tests that are nearest to it; both below the root."""

    module: str
    tests: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.module.removeprefix("src/").removesuffix(".py").replace("/", ".")


def _subject(module: str, *tests: str) -> Subject:
    return Subject(f"src/gpucommons/{module}.py", tuple(f"tests/{test}.py" for test in tests))


_CORUN_TESTS: Final = (
    "scheduler/corun/test_coruns",
    "scheduler/corun/test_phases",
    "scheduler/corun/test_weights",
    "scheduler/test_classes",
    "scheduler/test_phased",
)
_POLICY_TESTS: Final = (
    "scheduler/test_attained",
    "scheduler/test_verdicts",
    "scheduler/test_admission",
    "scheduler/test_policy",
    "scheduler/test_policy_fairness",
    "scheduler/test_policy_programs",
    "scheduler/test_owner_shares",
    "scheduler/test_quotas",
    "scheduler/test_policy_machine",
)
SUBJECTS: Final = (
    _subject("leases/policy/plan", "leases/test_queue", "leases/test_service", "leases/test_request_waits"),
    _subject("leases/policy/queue", "leases/test_queue", "leases/test_service"),
    _subject("leases/service/limits", "leases/test_limits"),
    _subject("idle/escalation", "idle/test_escalation"),
    _subject(
        "base/peers", "scheduler/test_peer_budget", "scheduler/test_admins", "base/test_line_server", "base/test_peers"
    ),
    _subject("base/line_server", "base/test_line_server", "leases/test_server"),
    _subject(
        "ledger/integrate",
        "ledger/test_integrate",
        "ledger/test_usage",
        "ledger/test_jobs",
        "ledger/test_writer",
        "ledger/test_accounts",
    ),
    _subject("scheduler/corun/coruns", *_CORUN_TESTS),
    _subject("scheduler/corun/accounts", *_CORUN_TESTS),
    _subject("scheduler/corun/facts", *_CORUN_TESTS),
    _subject("scheduler/policy/quotas", "scheduler/test_quotas", "scheduler/test_quota_accuracy"),
    _subject(
        "scheduler/policy/quota_bucket",
        "scheduler/test_quota_bucket",
        "scheduler/test_quota_accuracy",
        "scheduler/test_quotas",
    ),
    _subject(
        "scheduler/policy/core_limits",
        "scheduler/test_core_limits",
        "scheduler/test_quota_accuracy",
        "scheduler/test_policy",
    ),
    _subject("scheduler/policy/evaluation", *_POLICY_TESTS),
    _subject("scheduler/policy/attained", *_POLICY_TESTS),
    _subject(
        "scheduler/policy/phasing",
        "scheduler/test_phasing",
        *_POLICY_TESTS,
        "scheduler/test_phased",
        "scheduler/test_classes",
    ),
    _subject("scheduler/parking/arrivals", "parking/test_arrivals", "parking/test_plan"),
    _subject(
        "scheduler/parking/plan",
        "parking/test_plan",
        "parking/test_room_for",
        "parking/test_arrivals",
        "parking/test_expected",
    ),
    _subject("scheduler/parking/turns", "parking/test_turns", "parking/test_attained", "parking/test_plan"),
    _subject("pauser/counters", "pauser/test_counters", "pauser/test_small_parts"),
    _subject("pauser/arrivals", "pauser/test_arrival_watch"),
    _subject("pauser/holdback", "pauser/test_holdback", "pauser/test_holdback_times"),
    _subject("owners/slots", "holding/test_slots", "holding/test_allocations", "holding/test_ds01_rules"),
    _subject("owners/slot_states", "holding/test_slot_states", "holding/test_idle_periods"),
    _subject("owners/allocations", "holding/test_allocations", "holding/test_ds01_rules", "holding/test_leases"),
    _subject("rules/privacy", "rules/test_privacy", "rules/test_privacy_rows"),
)


class Mutant(NamedTuple):
    """`change` is one line: what was changed into what. `node` and `variant` say where in the tree. `function` is the
    line of the function that it is in; None: it is in none, and any test may notice it."""

    line: int
    change: str
    node: int
    variant: int
    function: int | None


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
    tree = ast.parse(source)
    functions = [(node.lineno, node.end_lineno or node.lineno) for node in _functions(tree)]
    for number, node in enumerate(_decisions(tree)):
        for variant in range(len(_changes(node))):
            changed = copy.deepcopy(node)
            _changes(changed)[variant](changed)
            change = f"{_short(ast.unparse(node))} -> {_short(ast.unparse(changed))}"
            innermost = max((first for first, last in functions if first <= node.lineno <= last), default=None)
            found.append(Mutant(node.lineno, change, number, variant, innermost))
    return found


def mutated(source: str, mutant: Mutant) -> str:
    """The source with this change, without comments. Pure."""
    tree = ast.parse(source)
    target = next(each for number, each in enumerate(_decisions(tree)) if number == mutant.node)
    _changes(target)[mutant.variant](target)
    return ast.unparse(tree)


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def traced(source: str, module: str) -> str:
    """The source, in which each function notes that it was entered, in the set `sys.entered`. Pure."""
    tree = ast.parse(source)
    for function in _functions(tree):
        note = ast.parse(f"__import__('sys').entered.add(({module!r}, {function.lineno}))").body
        function.body[_texts(function) : _texts(function)] = note
    return ast.unparse(tree)


def _texts(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """How many of its statements have to stay the first ones."""
    return int(ast.get_docstring(function) is not None)


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

CHANGED = {changed!r}


class Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        return importlib.util.spec_from_loader(name, self, origin=CHANGED[name][0]) if name in CHANGED else None

    def exec_module(self, module):
        path, source = CHANGED[module.__name__]
        module.__file__ = path
        exec(compile(source, path, "exec"), module.__dict__)


sys.entered = set()
sys.meta_path.insert(0, Changed())
"""


class Seen(NamedTuple):
    """One test in the run without a change: the functions that it entered, each a module and a line."""

    cpu_s: float
    functions: frozenset[tuple[str, int]]
    starts_programs: bool


class Result(NamedTuple):
    """`status` is None if the tests did not end. `failed` is the test that failed, or the one that did not end."""

    status: int | None
    failed: str | None


class _Watch:
    """In the child, a plugin of pytest: chooses the tests, and writes down what happens."""

    def __init__(self, chosen: Sequence[str] | None, folder: Path) -> None:
        self._numbers = None if chosen is None else {test: number for number, test in enumerate(chosen)}
        self._folder = folder
        self._entered: set[tuple[str, int]] = vars(sys)["entered"]
        self._starts_programs = False
        self._begun_s = 0.0
        self._seen: dict[str, tuple[float, list[tuple[str, int]], bool]] = {}

    def pytest_sessionstart(self) -> None:
        from hypothesis import Phase, settings

        # The smallest counterexample is of no use here, and expensive.
        settings.register_profile("mutants", settings(), phases=(Phase.explicit, Phase.generate))
        settings.load_profile("mutants")
        sys.addaudithook(self._note_event)

    def pytest_collection_modifyitems(self, items: "list[pytest.Item]") -> None:
        numbers = self._numbers
        if numbers is not None:
            items[:] = sorted((one for one in items if one.nodeid in numbers), key=lambda one: numbers[one.nodeid])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        (self._folder / "test").write_text(nodeid, "utf-8")
        self._entered.clear()
        self._starts_programs = False
        self._begun_s = time.process_time()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._seen[nodeid] = (time.process_time() - self._begun_s, sorted(self._entered), self._starts_programs)

    def pytest_sessionfinish(self) -> None:
        (self._folder / "seen").write_text(json.dumps(self._seen), "utf-8")

    def _note_event(self, event: str, _: object) -> None:
        self._starts_programs |= event in ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.exec")


def look(subjects: Sequence[Subject]) -> dict[str, Seen]:
    """The tests of these modules, which are the same for all of them, without a change. Ends the program if they do not
    pass."""
    tests, modules = subjects[0].tests, ", ".join(subject.module for subject in subjects)
    sources = {one: traced((ROOT / one.module).read_text("utf-8"), one.module) for one in subjects}
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        result = _outcome(tests, sources, None, _BASELINE_CPU_S, Path(folder))
        if result.status != _ALL_PASSED:
            why = "do not end" if result.status is None else "fail"
            raise SystemExit(f"{modules}: the tests {why} without a change: {result.failed}")
        rows = json.loads((Path(folder) / "seen").read_text("utf-8"))
    return {
        test: Seen(cpu_s, frozenset(map(tuple, functions)), starts) for test, (cpu_s, functions, starts) in rows.items()
    }


def judging(seen: Mapping[str, Seen], module: str, function: int | None) -> list[str]:
    """The tests that may notice a change in this function, the cheapest first. Pure."""
    chosen = (
        test
        for test, one in seen.items()
        if function is None or (module, function) in one.functions or one.starts_programs
    )
    return sorted(chosen, key=lambda test: seen[test].cpu_s)


def outcome(subject: Subject, source: str, chosen: Sequence[str] | None = None, cpu_s: float = 40.0) -> Result:
    """What the tests of a module, or those chosen, find with this source of it, with so much of the processor."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        return _outcome(subject.tests, {subject: source}, chosen, cpu_s, Path(folder))


def _outcome(
    tests: Sequence[str], sources: Mapping[Subject, str], chosen: Sequence[str] | None, cpu_s: float, folder: Path
) -> Result:
    child = os.fork()
    if not child:
        os.setsid()
        _run_tests(tests, sources, chosen, folder)
    try:
        status = _wait(child, cpu_s)
    finally:
        # Also what its tests have started.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    current = folder / "test"
    return Result(status, current.read_text("utf-8") if status != _ALL_PASSED and current.exists() else None)


def _wait(child: int, limit_s: float) -> int | None:
    """Its exit status; None if it used more of the processor than this, or none for a minute: then it is killed."""
    used_s, progress_s = 0.0, time.monotonic()
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if (now_used_s := _cpu_s(child)) > used_s:
            used_s, progress_s = now_used_s, time.monotonic()
        if used_s > limit_s or time.monotonic() > progress_s + _STALLED_S:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(0.02)


def _cpu_s(pid: int) -> float:
    """What a process and those of its children that have ended used of the processor."""
    fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / _TICKS_PER_S


def _run_tests(
    tests: Sequence[str], sources: Mapping[Subject, str], chosen: Sequence[str] | None, folder: Path
) -> None:
    """In the child. Does not return. What the tests write goes into the folder."""
    import pytest

    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silence, stream)
    files = folder / "files"
    files.mkdir()
    # Some tests start programs of other users, which open files there.
    folder.chmod(0o711)
    os.environ["TMPDIR"] = tempfile.tempdir = str(files)
    _forget_the_project()
    _change_imports(sources, folder)
    # What the thread was to do does not happen: the test would wait for that until its time is over.
    threading.excepthook = lambda _: os._exit(_SOME_FAILED)
    status = 70
    with contextlib.suppress(BaseException):
        # The limit of pyproject.toml for one test is in real time.
        options = (
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            "-p",
            "no:threadexception",
            "-m",
            "not long",
            "-o",
            "timeout=0",
        )
        status = int(pytest.main([*options, *(str(ROOT / test) for test in tests)], plugins=[_Watch(chosen, folder)]))
    os._exit(status)


def _forget_the_project() -> None:
    """The fork of a process that has imported the module, or a test of it, would use the unchanged one."""
    ours = (str(ROOT / "src"), str(ROOT / "tests"))
    for name, module in list(sys.modules.items()):
        if name != __name__ and str(getattr(module, "__file__", "")).startswith(ours):
            del sys.modules[name]


def _change_imports(sources: Mapping[Subject, str], folder: Path) -> None:
    site = folder / "sitecustomize.py"
    changed = {subject.name: (str(ROOT / subject.module), source) for subject, source in sources.items()}
    site.write_text(_SITE.format(changed=changed), "utf-8")
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    exec(compile(site.read_text("utf-8"), str(site), "exec"), {"__name__": "sitecustomize"})


class Counts(NamedTuple):
    killed: int = 0
    survived: int = 0


def hunt(seconds: float, seed: int, words: Sequence[str] = ()) -> dict[str, Counts]:
    """Prints each survivor as it is found."""
    subjects = [subject for subject in SUBJECTS if not words or any(word in subject.module for word in words)]
    # Read once: the files may be edited meanwhile.
    sources = {subject: (ROOT / subject.module).read_text("utf-8") for subject in subjects}
    chances = [(subject, mutant) for subject in subjects for mutant in mutants(sources[subject])]
    random.Random(seed).shuffle(chances)
    _show(f"{len(chances):,} mutants of {len(subjects)} modules, {seconds:g} s, seed {seed}")
    seen: dict[tuple[str, ...], dict[str, Seen]] = {}
    for tests in dict.fromkeys(subject.tests for subject in subjects):
        seen[tests] = look([subject for subject in subjects if subject.tests == tests])
    counts = {subject.module: Counts() for subject in subjects}
    until_s = time.monotonic() + seconds
    # Ctrl-C ends it early, and shows what was found.
    with contextlib.suppress(KeyboardInterrupt):
        for subject, mutant in chances:
            if time.monotonic() >= until_s:
                break
            if _survives(subject, sources[subject], mutant, seen[subject.tests]):
                counts[subject.module] = _more(counts[subject.module], survived=1)
            else:
                counts[subject.module] = _more(counts[subject.module], killed=1)
    for module, count in counts.items():
        _show(f"{module}: {count.killed} killed, {count.survived} survived")
    total = _more(
        Counts(), sum(each.killed for each in counts.values()), sum(each.survived for each in counts.values())
    )
    _show(f"in all: {total.killed} killed, {total.survived} survived")
    return counts


def _more(counts: Counts, killed: int = 0, survived: int = 0) -> Counts:
    return Counts(counts.killed + killed, counts.survived + survived)


def _survives(subject: Subject, source: str, mutant: Mutant, seen: Mapping[str, Seen]) -> bool:
    tests = judging(seen, subject.module, mutant.function)
    where = f"{subject.module}:{mutant.line}: {mutant.change}"
    if not tests:
        _show(f"survived, in a function that no test enters: {where}")
        return True
    limit_s = _CPU_SLACK_S + _CPU_FACTOR * sum(seen[test].cpu_s for test in tests)
    result = outcome(subject, mutated(source, mutant), tests, limit_s)
    if result.status == _ALL_PASSED:
        _show(f"survived: {where}")
    elif result.status is None:
        _show(f"killed, did not end: {where} ({result.failed})")
    return result.status == _ALL_PASSED


def _show(line: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {line}\n")
    sys.stdout.flush()


def main(given: Sequence[str]) -> None:
    # Imported before the forks, which then start in a fraction of the time.
    importlib.import_module("hypothesis")
    importlib.import_module("pytest")
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
    # With it come the libraries that the project uses.
    importlib.import_module("gpucommons.scheduler.service.thread")
    os.chdir(ROOT)
    seconds = float(given[0]) if given else 300.0
    seed = int(given[1]) if given[1:] else random.getrandbits(30)
    hunt(seconds, seed, given[2:])


if __name__ == "__main__":
    main(sys.argv[1:])
