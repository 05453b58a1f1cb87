"""Builds the account of the fake GPUs as a library, for tests and clients that are written in Python."""

import subprocess
from pathlib import Path

ACCOUNT = Path(__file__).resolve().parent / "gpus.c"


def build_gpus(into: Path) -> Path:
    into.mkdir(parents=True, exist_ok=True)
    library = into / "libgpus.so"
    flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run(["cc", *flags, "-o", str(library), str(ACCOUNT), "-lpthread", "-lm"], check=True)
    return library
