"""promtool's check of an exposition: one line per complaint; an exposition that it cannot parse is a failure."""

import subprocess

from needs import needs_program


def judged(body: str) -> list[str]:
    needs_program("promtool")
    done = subprocess.run(["promtool", "check", "metrics"], input=body, capture_output=True, text=True, timeout=60)
    assert done.returncode in (0, 3), done.stderr
    return done.stderr.splitlines()
