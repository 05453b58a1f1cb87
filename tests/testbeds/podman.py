"""A real Podman whose service speaks Docker's API, with its own storage and runtime directories."""

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from needs import needs_program, needs_root
from testbeds.daemons import (
    IMAGE,
    busybox_root,
    command,
    end,
    end_leftovers,
    unmount_below,
    wait_until_answers,
)

# runc, and limits of its own: a machine without CAP_SYS_RESOURCE cannot raise the ones Podman would set.
_ENGINE = """
[engine]
runtime = "runc"
events_logger = "file"
cgroup_manager = "cgroupfs"
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
"""
_STORAGE = """
[storage]
driver = "overlay"
graphroot = "{home}/graph"
runroot = "{home}/run"
"""


class Podman:
    def __init__(self, home: Path) -> None:
        self.home = home
        self.socket = home / "podman.sock"
        self._log = home / "podman.log"
        self._process: subprocess.Popen[bytes] | None = None
        (home / "containers.conf").write_text(_ENGINE)
        (home / "storage.conf").write_text(_STORAGE.format(home=home))
        self._environment = {
            "CONTAINERS_CONF": str(home / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(home / "storage.conf"),
        }

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                ["podman", *self._options(), "system", "service", "--time=0", f"unix://{self.socket}"],
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **self._environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_until_answers(self.socket, self._process, self._log)

    def podman(self, *arguments: str) -> str:
        return command(["podman", *self._options(), *arguments], self._environment)

    def run(self, *options: str) -> str:
        """Start a container that sleeps; returns its full id."""
        return self.podman("run", "--detach", "--network=none", *options, IMAGE, "/bin/sleep", "600")

    def stop(self) -> None:
        if self._process is not None:
            end(self._process)

    def _options(self) -> list[str]:
        return [f"--tmpdir={self.home / 'tmp'}"]


@contextlib.contextmanager
def running_podman() -> Iterator[Podman]:
    needs_program("podman", "runc", "busybox")
    needs_root()
    with tempfile.TemporaryDirectory(prefix="gpucommons-podman-", ignore_cleanup_errors=True) as directory:
        podman = Podman(Path(directory))
        try:
            podman.podman("import", str(busybox_root(podman.home)), IMAGE)
            podman.start()
            yield podman
        finally:
            with contextlib.suppress(RuntimeError):
                podman.podman("rm", "--all", "--force", "--time=0")
            podman.stop()
            end_leftovers(podman.home)
            unmount_below(podman.home)
