"""Builds the fake `libcuda.so.1` and the fake CUDA program from C."""

from pathlib import Path

from fakes.compiler import compile_c
from fakes.gpu.build import ACCOUNT

HERE = Path(__file__).resolve().parent
SONAME = "libcuda.so.1"


def build_driver(into: Path, *, old: bool = False) -> Path:
    """The library; `old` lacks the calls that pause, as drivers before r570 do."""
    into.mkdir(parents=True, exist_ok=True)
    defines = ["-DOLD_DRIVER", "-Wno-unused-function"] if old else []
    return compile_c(into / SONAME, [HERE / "driver.c"], ["-shared", "-fPIC", f"-Wl,-soname,{SONAME}", *defines])


def build_program(into: Path) -> Path:
    into.mkdir(parents=True, exist_ok=True)
    return compile_c(into / "program", [HERE / "program.c", ACCOUNT])
