"""The node's state in one sentence, and its problems, for a terminal: the API's texts with their colours. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from gpucommons.base.text import printable
from gpucommons.cli.output import Line, Span, plain_line
from gpucommons.cli.text_table import wrapped

_SEPARATOR = " · "
_LEVELS = {"lost": "bold red", "critical": "bold red", "warning": "yellow"}
_COLOURS = {"bad": "bold red", "warning": "yellow", "good": "green", "plain": ""}


def summary_lines(summary: Mapping[str, Any], width: int | None, before: str = "") -> Iterator[Line]:
    """`1 GPU lost (GPU 3) · 3 free (GPU 7.3, 7.4, 7.5)`, broken between the parts where the terminal is narrow.

    `summary` is that of /api/v1/problems. `before` begins the first line.
    """
    line, used, separator = ([Span(printable(before))], len(before), "") if before else ([], 0, "")
    for part in summary["parts"]:
        text = f"{part['text']} ({part['detail']})" if part["detail"] else part["text"]
        if separator and width is not None and used + len(separator) + len(text) > width:
            yield line
            line, used, separator = [], 0, ""
        room = len(text) * 10 if width is None else max(1, width - used - len(separator))
        line += [Span(printable(separator)), Span(printable(text, room), _COLOURS[part["tone"]])]
        used += len(separator) + len(text)
        separator = _SEPARATOR
    yield line


def problem_lines(problems: Mapping[str, Any], width: int | None) -> Iterator[Line]:
    """Each problem with what to do, gravest first. `problems` is that of /api/v1/problems."""
    for problem in sorted(problems.values(), key=lambda problem: int(problem["rank"])):
        level = problem["level"]
        first, *more = wrapped([printable(f"{level}: {problem['sentence']} {problem['remedy']}")], width)
        yield [Span(printable(first[: len(level)]), _LEVELS.get(level, "")), Span(printable(first[len(level) :]))]
        yield from map(plain_line, more)
