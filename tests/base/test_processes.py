"""Whether users see each other's processes, by how procfs is mounted."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpucommons.base.processes import hides_processes
from needs import needs_root

LINE = "23 29 0:21 / {place} rw,nosuid shared:12 - proc proc rw{options}\n"


@pytest.mark.parametrize(
    ("options", "hidden"),
    [
        ("", False),
        (",hidepid=0", False),
        (",hidepid=off", False),
        (",gid=5,hidepid=2", True),
        (",hidepid=invisible", True),
    ],
)
def test_the_mounts_of_pid_1_count(tmp_path: Path, options: str, hidden: bool) -> None:
    (tmp_path / "1").mkdir()
    other = LINE.format(place="/srv/chroot/proc", options="" if hidden else ",hidepid=2")
    text = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n" + LINE.format(place="/proc", options=options) + other
    (tmp_path / "1/mountinfo").write_text(text)
    assert hides_processes(tmp_path) is hidden


def test_a_procfs_that_cannot_be_judged_hides_nothing(tmp_path: Path) -> None:
    assert hides_processes(tmp_path) is False


def test_a_real_procfs_with_hidepid() -> None:
    needs_root()
    look = (
        "from pathlib import Path; from gpucommons.base.processes import hides_processes as h; print(h(Path('/proc')))"
    )
    shell = f'mount -t proc -o hidepid={{}} proc /proc && exec {sys.executable} -c "{look}"'
    for option, shown in (("2", "True"), ("0", "False")):
        done = subprocess.run(
            ["unshare", "--pid", "--fork", "--mount", "sh", "-c", shell.format(option)],
            capture_output=True,
            text=True,
            timeout=30,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert done.stdout.strip() == shown, done.stderr
