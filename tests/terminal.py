"""A command in a real terminal of a given size."""

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterable, Mapping

from gpucommons.cli.output import Line

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def in_terminal(
    columns: int, *command: str, environment: Mapping[str, str] | None = None, rows: int = 24, until: str = ""
) -> tuple[int, str]:
    """The exit status, and what the command wrote to the terminal, with its escape sequences.

    A command that does not end by itself is interrupted when it has written `until` and the rest of that line.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-m", "gpucommons", *command],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**inherited, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **(environment or {})},
        start_new_session=True,
    )
    os.close(theirs)
    written = b""
    try:
        while piece := os.read(ours, 65_536):
            written += piece
            if until and "\n" in written.decode("utf-8", "replace").partition(until)[2]:
                process.send_signal(signal.SIGINT)
                until = ""
    except OSError:
        # The last process that had the terminal open has ended.
        pass
    finally:
        os.close(ours)
        status = process.wait(60)
    return status, written.decode().replace("\r\n", "\n")


def without_escapes(text: str) -> str:
    return _ESCAPE.sub("", text)


def text_of(line: Line) -> str:
    """A line of a command's table, without its colours."""
    return "".join(span.text for span in line)


def texts_of(lines: Iterable[Line]) -> list[str]:
    return [text_of(line) for line in lines]
