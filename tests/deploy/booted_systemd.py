"""A container with systemd as its first process, made of this machine's own root: what is written goes to memory.

It needs no image and no container runtime: an overlay of `/`, and namespaces of its own, the network included. The
services that this machine has enabled are not started, and the kernel's settings are read-only.
"""

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from needs import needs_program, needs_root
from waiting import until

_SYSTEMD = Path("/lib/systemd/systemd")
# $1 is an empty directory; the rest are pairs of a directory of this machine and its place in the container.
_BOOT = """
set -e
at=$1; shift
mount -t tmpfs none "$at"
mkdir "$at/upper" "$at/work" "$at/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$at/upper,workdir=$at/work" "$at/root"
root=$at/root
mount -t proc proc "$root/proc"
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 none "$root/sys/fs/cgroup"
for place in run tmp dev; do mount -t tmpfs none "$root/$place"; done
for device in null zero full random urandom tty; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir "$root/dev/shm"
ln -s /proc/self/fd "$root/dev/fd"
# Nothing that this machine has enabled, and nothing that would reach its kernel.
rm -rf "$root/etc/systemd/system"
mkdir -p "$root/etc/systemd/system"
for unit in systemd-modules-load.service systemd-sysctl.service systemd-remount-fs.service systemd-udevd.service \\
    sys-kernel-debug.mount sys-kernel-tracing.mount sys-kernel-config.mount sys-fs-fuse-connections.mount \\
    dev-hugepages.mount dev-mqueue.mount proc-sys-fs-binfmt_misc.automount; do
    ln -s /dev/null "$root/etc/systemd/system/$unit"
done
printf '[Manager]\\nDefaultEnvironment=%s\\n' "$SERVICES" >"$root/etc/systemd/system.conf"
rm -rf "$root/var/lib/gpucommons" "$root/var/lib/private/gpucommons" "$root/opt/gpucommons" "$root/etc/gpucommons"
while [ $# -gt 0 ]; do
    mkdir -p "$root$2"
    mount --bind "$1" "$root$2"
    shift 2
done
ip link set lo up
exec chroot "$root" env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin \\
    /lib/systemd/systemd --system --unit=multi-user.target --show-status=no
"""


@dataclass(frozen=True, slots=True)
class BootedSystemd:
    """`pid` is that of its first process, seen from this machine."""

    pid: int

    def run(self, *command: str, environment: Mapping[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
        """A command inside, as root."""
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return subprocess.run(
            ["nsenter", "--target", str(self.pid), "--all", "--root", "env", "--chdir=/", *command],
            env={"PATH": path, "LANG": "C.UTF-8", **(environment or {})},
            capture_output=True,
            text=True,
            timeout=300,
        )

    def output(self, *command: str, environment: Mapping[str, str] | None = None) -> str:
        done = self.run(*command, environment=environment)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}\n{self.journal()}"
        return done.stdout.strip()

    def journal(self) -> str:
        return self.run("journalctl", "--no-pager", "--lines=40").stdout


@contextmanager
def booted_systemd(work: Path, binds: Mapping[Path, str], services: str) -> Iterator[BootedSystemd]:
    """`services` is an assignment for the environment of every service."""
    needs_root()
    needs_program("unshare", "nsenter", "ip", "mount", "chroot", "systemctl")
    if not _SYSTEMD.exists():
        pytest.skip(f"needs {_SYSTEMD}")
    group = _new_cgroup(work.name)
    place = work / "container"
    place.mkdir()
    # A shell joins the cgroup first: it is the root of the container's own cgroups.
    joined = f'echo $$ >"{group}/cgroup.procs" && exec "$@"'
    separate = ["--mount", "--pid", "--fork", "--kill-child", "--cgroup", "--uts", "--ipc", "--net"]
    unshared = ["unshare", *separate, "--propagation", "private"]
    pairs = [word for pair in binds.items() for word in map(str, pair)]
    process = subprocess.Popen(
        [*("sh", "-c", joined, "sh"), *unshared, *("bash", "-c", _BOOT, "bash", str(place), *pairs)],
        env={"PATH": os.environ["PATH"], "SERVICES": services},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield _when_booted(process)
    finally:
        # unshare ignores SIGTERM while it waits; with it, the whole container ends.
        process.kill()
        process.communicate()
        until(lambda: _removed(group), "the cgroups of the container are empty")


def _when_booted(process: "subprocess.Popen[str]") -> BootedSystemd:
    def found() -> BootedSystemd | None:
        if process.poll() is not None:
            assert process.stderr is not None
            pytest.skip(f"needs to boot systemd in namespaces: {process.stderr.read().strip()}")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        inside = BootedSystemd(int(children[0])) if children else None
        state = inside.run("systemctl", "is-system-running").stdout.strip() if inside else ""
        return inside if state in ("running", "degraded") else None

    return until(found, "systemd has booted", within_s=90)


def _new_cgroup(name: str) -> Path:
    """An empty cgroup (version 2) below our own."""
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    roots = [fields[4] for fields in mounts if fields[fields.index("-") + 1] == "cgroup2"]
    if not roots:
        pytest.skip("needs cgroups of version 2")
    own = next(line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
    group = Path(roots[0]) / own.lstrip("/") / f"booted-{os.getpid()}-{name}"
    group.mkdir()
    return group


def _removed(group: Path) -> bool:
    for directory, _, _ in os.walk(group, topdown=False):
        try:
            os.rmdir(directory)
        except OSError:
            return False
    return not group.exists()
