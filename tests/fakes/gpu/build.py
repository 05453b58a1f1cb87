"""Builds the account of the fake GPUs as a library, for tests and clients that are written in Python."""

from pathlib import Path

from fakes.compiler import compile_c

ACCOUNT = Path(__file__).resolve().parent / "gpus.c"


def build_gpus(into: Path) -> Path:
    into.mkdir(parents=True, exist_ok=True)
    return compile_c(into / "libgpus.so", [ACCOUNT], ["-shared", "-fPIC"])
