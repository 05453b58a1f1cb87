"""Helpers of the testbeds: wait for a daemon, build an image, unmount everything."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tarfile
import time
from pathlib import Path

START_TIMEOUT_S = 30.0
COMMAND_TIMEOUT_S = 60.0
IMAGE = "gpucommons-test:1"


def answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


def wait_until_answers(path: Path, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while not answers(path):
        if process.poll() is not None or time.monotonic() > deadline_s:
            raise RuntimeError(f"no answer at {path}: {log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.02)


def busybox_root(home: Path) -> Path:
    """A tar archive of the smallest root file system that can sleep."""
    archive = home / "root.tar"
    busybox = shutil.which("busybox")
    assert busybox is not None
    if b"/lib64/ld-linux" in Path(busybox).read_bytes():
        raise RuntimeError(f"{busybox} needs libraries that a container lacks: install busybox-static")
    with tarfile.open(archive, "w") as tar:
        tar.add(os.path.realpath(busybox), "bin/busybox")
        for name in ("sh", "sleep", "true"):
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
    return archive


def command(arguments: list[str], environment: dict[str, str]) -> str:
    """Runs a program to its end and returns its output; a failure includes its error output."""
    done = subprocess.run(
        arguments,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


def cgroup_of(pid: int | None) -> str:
    return Path(f"/proc/{pid}/cgroup").read_text()


def end(process: "subprocess.Popen[bytes]", patience_s: float = 15.0) -> None:
    """Terminates the process; kills it after a timeout."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGCONT)
    process.terminate()
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def end_leftovers(home: Path) -> None:
    """Ends the processes that a daemon left: the shims of this directory and their containers."""
    shims = {pid for pid, _ in _processes() if str(home).encode() in _command_line(pid)}
    for pid, parent in _processes():
        if parent in shims:
            _kill(pid)
    for pid in shims:
        _kill(pid)


def _processes() -> list[tuple[int, int]]:
    """Every (pid, parent's pid) of the machine."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            found.append((int(path.parent.name), int(path.read_text().rpartition(")")[2].split()[1])))
    return found


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def unmount_below(home: Path) -> None:
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for mount in sorted((m for m in mounts if m.startswith(f"{home}/")), reverse=True):
        subprocess.run(["umount", "-l", mount], check=False, capture_output=True)
