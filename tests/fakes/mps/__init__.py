"""A fake nvidia-cuda-mps-control on the PATH, and the files that steer it."""

import os
import subprocess
from pathlib import Path

from needs import needs_program

_SOURCE = Path(__file__).with_name("control.c")


class FakeMps:
    """`directory` must be one that other users can enter."""

    def __init__(self, directory: Path) -> None:
        needs_program("cc")
        self.knobs = directory / "knobs"
        self.programs = directory / "bin"
        for made in (self.knobs, self.programs):
            made.mkdir()
            made.chmod(0o755)
        program = self.programs / "nvidia-cuda-mps-control"
        knobs = f'-DKNOBS="{self.knobs}"'
        subprocess.run(["cc", "-O1", "-Wall", knobs, "-o", str(program), str(_SOURCE)], check=True)
        self.path = f"{self.programs}:{os.environ['PATH']}"

    def set(self, knob: str, text: str = "") -> None:
        (self.knobs / knob).write_text(text)
        (self.knobs / knob).chmod(0o644)

    def unset(self, knob: str) -> None:
        (self.knobs / knob).unlink(missing_ok=True)
