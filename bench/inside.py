"""A benchmark that runs itself again on a made machine, with a network, a /run and processes of its own, and the
programs that it compares there."""

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

from bench import ROOT
from testbeds.hosts import host


def run_inside(module: str, *paths: str, within_s: float) -> NoReturn:
    """Runs `python -m MODULE PATH... DIRECTORY` there, with a directory that is removed, and exits as it does."""
    with host() as place, TemporaryDirectory() as directory:
        command = [sys.executable, "-m", module, *(str(Path(path).resolve()) for path in paths), directory]
        log = Path(directory) / "inside.log"
        with place.running(["/usr/bin/env", f"--chdir={ROOT}", *command], log) as inside:
            inside.wait(timeout=within_s)
        print(log.read_text())
        sys.exit(inside.returncode)


@contextmanager
def logged_program(command: Sequence[str], environment: Mapping[str, str], log: Path) -> Iterator[None]:
    """The program runs in the folder of its log, whose end is printed where the comparison fails."""
    with log.open("wb") as out:
        child = subprocess.Popen(command, env=environment, stdout=out, stderr=out, cwd=log.parent)
    try:
        yield
    except BaseException:
        print(log.read_text(errors="replace")[-3000:])
        raise
    finally:
        child.terminate()
        child.wait(timeout=30)
