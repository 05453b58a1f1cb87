"""Everything that a command prints is Printable: names from outside never reach a terminal as they are.

The types say so: `cli/output.py` takes Printable only, and mypy checks it. This test checks what mypy cannot: that
nothing writes past that module, that only `base/text.py` makes a Printable, and what textual is given.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpucommons.base.text import Printable, printable
from gpucommons.cli.output import show

SOURCE = Path(__file__).resolve().parents[2] / "src/gpucommons"
SINK = "cli/output.py"
MAKER = "base/text.py"
# The log handler escapes, the runner closes the stream. The pauser's lines hold numbers.
STREAM_USERS = {SINK, "cli/logs.py", "cli/command_line.py", "pauser/log.py"}
# Functions that show their first argument, and the functions whose results they may show.
SHOWING = {"Static", "update", "print"}
SAFE = {"printable", "rich_text", "rich_lines", "head_line", "check_printable"}
# Each problem has one of these words. Most files have none, and are not parsed.
SIGNS = re.compile(r"\b(stdout|stderr|echo|secho|print|Printable|Text|Static|update)\b")
# A rich table is filled with rich_text; a progress bar has a number.
HANDLES = {"table", "bar"}


def called(node: ast.AST) -> str:
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def is_safe(shown: ast.expr) -> bool:
    return isinstance(shown, ast.Constant) or called(shown) in SAFE or getattr(shown, "id", "") in HANDLES


def problems(path: str, text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)) if SIGNS.search(text) else ():
        where = f"{path}:{getattr(node, 'lineno', 0)}"
        match node:
            case ast.Attribute(value=ast.Name(id="sys"), attr="stdout" | "stderr") if path not in STREAM_USERS:
                yield f"{where}: sys.stdout and sys.stderr belong to {SINK}"
            case ast.Attribute(attr="echo" | "secho"):
                yield f"{where}: echo prints past {SINK}"
            case ast.Call(func=ast.Name(id="print")):
                yield f"{where}: print prints past {SINK}"
            case ast.Call(func=ast.Name(id="Printable")) if path != MAKER:
                yield f"{where}: only {MAKER} makes a Printable"
            case ast.Call(func=ast.Name(id="Text")) if path != SINK:
                yield f"{where}: Text shows any str: use rich_text of {SINK}"
            case ast.Call(args=[shown, *_]) if called(node) in SHOWING and not is_safe(shown):
                yield f"{where}: {called(node)} shows a text that did not pass through printable"


def test_every_command_prints_through_one_place() -> None:
    texts = {str(path.relative_to(SOURCE)): path.read_text() for path in SOURCE.rglob("*.py")}
    found = [
        line
        for path, text in texts.items()
        for line in problems(path, text)
        # `update` is also a method of dict: it shows something in the commands only.
        if path.startswith("cli/") or "update shows" not in line
    ]
    assert not found


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("cli/report.py", "sys.stdout.write(name)"),
        ("cli/report.py", "typer.echo(name)"),
        ("cli/report.py", "run(typer.echo)"),
        ("cli/report.py", "print(name)"),
        ("cli/report.py", "show(Printable(name))"),
        ("cli/gpus_view.py", "Text(gpu['name'])"),
        ("cli/gpus_view.py", "console.print(gpu['name'])"),
        ("cli/top_app.py", "head.update(f'{self._lost}')"),
        ("cli/top_app.py", "Static(self._feed.where)"),
    ],
)
def test_the_check_finds(path: str, line: str) -> None:
    assert list(problems(path, line))


def test_a_value_of_a_document_is_checked_when_it_is_printed() -> None:
    name: Printable = {"name": "\x1b[2J"}["name"]  # type: ignore[assignment]
    with pytest.raises(TypeError, match="not Printable"):
        show(name)
    with pytest.raises(TypeError):
        show(printable("a") + name)  # type: ignore[arg-type]
