"""Builds the fake `libcuda.so.1` and the fake CUDA program from C."""

import subprocess
from pathlib import Path

from fakes.gpu.build import ACCOUNT

HERE = Path(__file__).resolve().parent
SONAME = "libcuda.so.1"
_COMPILE = ["cc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror"]


def build_driver(into: Path, *, old: bool = False) -> Path:
    """The library; `old` lacks the calls that pause, as drivers before r570 do."""
    into.mkdir(parents=True, exist_ok=True)
    library = into / SONAME
    defines = ["-DOLD_DRIVER", "-Wno-unused-function"] if old else []
    shared = ["-shared", "-fPIC", f"-Wl,-soname,{SONAME}", *defines]
    subprocess.run([*_COMPILE, *shared, "-o", str(library), str(HERE / "driver.c"), "-lpthread"], check=True)
    return library


def build_program(into: Path) -> Path:
    into.mkdir(parents=True, exist_ok=True)
    program = into / "program"
    parts = [str(HERE / "program.c"), str(ACCOUNT)]
    subprocess.run([*_COMPILE, "-o", str(program), *parts, "-lpthread", "-lm"], check=True)
    return program
