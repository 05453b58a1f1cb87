"""What the commands print: the only place that writes to the terminal. It takes Printable, never a plain str."""

import sys
from collections.abc import Iterable, Sequence
from shutil import get_terminal_size
from typing import TYPE_CHECKING, NamedTuple, TextIO

from gpucommons.base.text import Printable, printable, printable_lines

if TYPE_CHECKING:
    from rich.console import JustifyMethod, OverflowMethod
    from rich.text import Text

_COLOURS = {
    "bold": "\033[1m",
    "dim": "\033[2m",
    "green": "\033[32m",
    "yellow": "\033[33m",
    "red": "\033[31m",
    "bold red": "\033[1;31m",
}
_PLAIN = "\033[0m"
_CLEAR_SCREEN = "\033[2J\033[H"
_CLEAR_LINE = "\r\033[K"


def show(text: Printable) -> None:
    """Lines that already end with a line break."""
    _write(text, sys.stdout)


def show_line(line: Printable) -> None:
    _write(line, sys.stdout)
    sys.stdout.write("\n")
    sys.stdout.flush()


def show_error(line: Printable) -> None:
    _write(line, sys.stderr)
    sys.stderr.write("\n")


def has_live_line() -> bool:
    """Whether a line of progress can be written again and again: stderr is a terminal."""
    return sys.stderr.isatty()


def show_live(line: Printable) -> None:
    """Replaces the line of progress."""
    clear_live()
    _write(line, sys.stderr)
    sys.stderr.flush()


def ring_bell() -> None:
    sys.stderr.write("\a")
    sys.stderr.flush()


def clear_live() -> None:
    sys.stderr.write(_CLEAR_LINE)
    sys.stderr.flush()


def show_data(text: str) -> None:
    """Data in another program's format: exact in a pipe or a file; in a terminal with its characters escaped."""
    if sys.stdout.isatty():
        show(printable_lines(text.removesuffix("\n").split("\n")))
    else:
        sys.stdout.write(text)


def terminal_width() -> int | None:
    """None where stdout is not a terminal."""
    return get_terminal_size().columns if sys.stdout.isatty() else None


def shows_unicode() -> bool:
    """Whether the terminal shows more characters than those of ASCII."""
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


class Span(NamedTuple):
    """A part of a line. In a terminal it has the colour, one of _COLOURS; empty: none."""

    text: Printable
    colour: str = ""


Line = Sequence[Span]


def plain_line(text: str) -> Line:
    return [Span(printable(text))]


def show_lines(lines: Iterable[Line]) -> None:
    """Lines of parts. Only a terminal gets colours."""
    coloured = sys.stdout.isatty()
    for line in lines:
        for text, colour in line:
            if coloured and colour:
                sys.stdout.write(_COLOURS[colour])
            _write(text, sys.stdout)
            if coloured and colour:
                sys.stdout.write(_PLAIN)
        sys.stdout.write("\n")


def clear_screen() -> None:
    sys.stdout.write(_CLEAR_SCREEN)


def rich_text(
    text: Printable, style: str = "", *, justify: "JustifyMethod" = "default", overflow: "OverflowMethod | None" = None
) -> "Text":
    """A cell or a line for rich, on one line. A plain str would be taken for markup: names may contain brackets."""
    # Imported here: importing rich takes a tenth of a second, and most commands do not need it.
    from rich.text import Text

    return Text(check_printable(text), style, justify=justify, no_wrap=True, overflow=overflow)


def rich_lines(lines: Iterable[Line]) -> "Text":
    """Lines of parts with their colours, for textual."""
    shown = rich_text(printable(""))
    for number, line in enumerate(lines):
        if number:
            shown.append("\n")
        for span in line:
            shown.append_text(rich_text(span.text, span.colour))
    return shown


def _write(text: Printable, to: TextIO) -> None:
    to.write(check_printable(text))


def check_printable(text: Printable) -> Printable:
    """The types are checked at run time too: values of JSON documents have the type Any."""
    if not isinstance(text, Printable):
        raise TypeError(f"not Printable: {type(text).__name__}")
    return text
