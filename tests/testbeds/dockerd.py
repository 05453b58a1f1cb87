"""A dockerd with its own data, socket and containerd, independent of the Docker of the machine."""

import contextlib
import signal
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

_CONTAINERD = """
version = 2
root = "{home}/containerd"
state = "{home}/containerd-state"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
address = "{home}/containerd.sock"
"""


class Dockerd:
    """containerd is a process of its own, as on a real host, so that containers outlive a dead dockerd."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.socket = home / "docker.sock"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        (home / "containerd.toml").write_text(_CONTAINERD.format(home=home))

    def start(self) -> None:
        """Start what is not running, and wait until it answers."""
        if "containerd" not in self._processes:
            socket = self.home / "containerd.sock"
            self._spawn(socket, "containerd", f"--config={self.home / 'containerd.toml'}")
        self._spawn(
            self.socket,
            "dockerd",
            "--live-restore",
            "--iptables=false",
            "--ip6tables=false",
            "--bridge=none",
            "--storage-driver=overlay2",
            f"--containerd={self.home / 'containerd.sock'}",
            f"--data-root={self.home / 'data'}",
            f"--exec-root={self.home / 'exec'}",
            f"--pidfile={self.home / 'dockerd.pid'}",
            f"--host=unix://{self.socket}",
        )

    def _spawn(self, socket: Path, program: str, *arguments: str) -> None:
        log = self.home / f"{program}.log"
        with log.open("ab") as output:
            self._processes[program] = process = subprocess.Popen(
                [program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        wait_until_answers(socket, process, log)

    def docker(self, *arguments: str) -> str:
        return command(["docker", *arguments], {"DOCKER_HOST": f"unix://{self.socket}"})

    def run(self, *options: str, sleep_s: int = 600) -> str:
        """Start a container that sleeps; returns its full id."""
        return self.docker("run", "--detach", "--network=none", *options, IMAGE, "/bin/sleep", str(sleep_s))

    def create(self, *options: str) -> str:
        """Creates a container without starting it; returns its full id."""
        return self.docker("create", "--network=none", *options, IMAGE, "/bin/sleep", "600")

    def remove_all(self) -> None:
        if ids := self.docker("ps", "--all", "--quiet", "--no-trunc").split():
            self.docker("rm", "--force", *ids)

    def kill(self) -> None:
        """Like a crash: the socket file remains, and connections to it fail."""
        process = self._processes.pop("dockerd")
        process.kill()
        process.wait()

    @contextlib.contextmanager
    def hung(self) -> Iterator[None]:
        process = self._processes["dockerd"]
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        with contextlib.suppress(RuntimeError):
            self.remove_all()
        for program in ("dockerd", "containerd"):
            if program in self._processes:
                end(self._processes.pop(program))
        end_leftovers(self.home)
        unmount_below(self.home)


@contextlib.contextmanager
def running_dockerd() -> Iterator[Dockerd]:
    needs_program("dockerd", "docker", "containerd", "runc", "busybox")
    needs_root()
    # Not under pytest's directories: a socket's path must be short.
    with tempfile.TemporaryDirectory(prefix="gpucommons-docker-", ignore_cleanup_errors=True) as directory:
        daemon = Dockerd(Path(directory))
        try:
            daemon.start()
            daemon.docker("import", str(busybox_root(daemon.home)), IMAGE)
            yield daemon
        finally:
            daemon.stop()
