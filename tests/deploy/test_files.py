"""What is drawn from the code is what the code draws now; the image is built from files that are there."""

import re
import runpy
import subprocess
from pathlib import Path

import pytest

from needs import needs_program

ROOT = Path(__file__).resolve().parents[2]
FILES = runpy.run_path(str(ROOT / "scripts" / "make_deploy.py"))["FILES"]


@pytest.mark.parametrize("name", FILES)
def test_a_drawn_file_is_current(name: str) -> None:
    assert (ROOT / "deploy" / name).read_text() == FILES[name](), "run: make deploy-files"


@pytest.mark.long
@pytest.mark.parametrize("names", [("compose.yaml",), ("compose.yaml", "compose.sharing.yaml")], ids="+".join)
def test_docker_compose_takes_the_committed_files(names: tuple[str, ...]) -> None:
    needs_program("docker-compose")
    files = [argument for name in names for argument in ("--file", str(ROOT / "deploy" / name))]
    done = subprocess.run(["docker-compose", *files, "config", "--quiet"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_image_is_built_from_what_is_there() -> None:
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    copied = [
        name for line in re.findall(r"^COPY (?!--from)(.+)$", dockerfile, re.MULTILINE) for name in line.split()[:-1]
    ]
    assert copied
    for name in copied:
        assert (ROOT / name).exists()
        assert f"!{name}" in ignored, "what is copied is not kept out"
    assert re.search(r"^USER (?!0|root)", dockerfile, re.MULTILINE)
