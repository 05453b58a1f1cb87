"""`python tests/traced.py FILE MODULE [ARGUMENT]...`: runs a module, and writes which files of gpucommons it executes.

A file counts when one of its functions is called, on any thread; importing it does not count. Each file is written
once, in the order of the first calls.
"""

import inspect
import runpy
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

SOURCE = f"{Path(__file__).resolve().parents[1] / 'src' / 'gpucommons'}/"


def profiler(report: Callable[[str], None]) -> Callable[[FrameType, str, object], None]:
    """For sys.setprofile. `report` gets the path below the package of each file, once."""
    seen: set[CodeType] = set()
    files: set[str] = set()

    def profile(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or code in seen:
            return
        seen.add(code)
        # The bodies of modules and classes run when they are imported, and are not optimized.
        if code.co_flags & inspect.CO_OPTIMIZED and code.co_filename.startswith(SOURCE):
            file = code.co_filename.removeprefix(SOURCE)
            if file not in files:
                files.add(file)
                report(file)

    return profile


@contextmanager
def traced() -> Iterator[list[str]]:
    """The files that this thread executes."""
    files: list[str] = []
    before = sys.getprofile()
    sys.setprofile(profiler(files.append))
    try:
        yield files
    finally:
        sys.setprofile(before)


def main() -> None:
    _, output, module, *arguments = sys.argv
    sys.argv = [module, *arguments]
    with open(output, "a", buffering=1) as file:
        profile = profiler(lambda path: print(path, file=file))
        threading.setprofile(profile)
        sys.setprofile(profile)
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
