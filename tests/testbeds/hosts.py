"""Hosts on this machine: each has a network namespace and a root file system; veth pairs connect them.

A host has its own ports and paths, so that a shipped command runs there unchanged. Its root shows the machine's files,
except for an installed gpucommons; /etc, /opt, /run, /var and /var/lib can be added to without changing the machine.
Namespaces and mounts go with the last process in them; the first one ends when its pipe to the test closes.
"""

import ctypes
import http.client
import os
import shlex
import socket
import subprocess
import sys
import tempfile
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from needs import needs_program, needs_root
from testbeds.daemons import end

_CLONE_NEWNET = 0x40000000
_MAKE_ROOT = """
set -eu
root=$1
layer() {
    mkdir "$root$1"
    find "$1" -mindepth 1 -maxdepth 1 ! -name 'gpucommons*' ! -name nvshare -printf '/.machine%p\\0' |
        xargs -0r ln -s -t "$root$1"
}
mount -t tmpfs -o mode=0755 host "$root"
mkdir "$root/.machine"
mount --rbind / "$root/.machine"
for entry in /*; do
    case $entry in /etc | /opt | /run | /var) layer "$entry"; continue ;; esac
    if [ -L "$entry" ]; then
        cp -P "$entry" "$root$entry"
    elif [ -d "$entry" ]; then
        mkdir "$root$entry"
        mount --rbind "$entry" "$root$entry"
    fi
done
rm "$root/var/lib"
layer /var/lib
mkdir -p "$root/host/proc"
mount --bind /proc "$root/host/proc"
ip link set lo up
exec chroot "$root" sh -c 'echo ready; exec cat'
"""


@dataclass(frozen=True)
class Host:
    """`pid` is the process that holds the namespaces."""

    pid: int

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        """A file of this host only, in a writable directory."""
        file = Path(f"/proc/{self.pid}/root{path}")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        file.write_text(text)
        file.chmod(mode)

    def install(self, program: str) -> None:
        """gpucommons of this source tree at `program`, as if it were installed there."""
        path = os.pathsep.join(filter(None, sys.path))
        start = f"exec {shlex.quote(sys.executable)} -m gpucommons"
        self.write(program, f'#!/bin/sh\nPYTHONPATH={shlex.quote(path)} {start} "$@"\n', 0o755)

    def ip(self, *commands: str) -> None:
        """Commands of ip(8) in this host's network namespace."""
        entered = ["nsenter", f"--target={self.pid}", "--net", "ip", "-batch", "-"]
        subprocess.run(entered, input="\n".join(commands), text=True, check=True, timeout=30)

    @contextmanager
    def running(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> Iterator["subprocess.Popen[bytes]"]:
        """A program on this host, which ends with the block. What it prints is appended to `log`."""
        entered = ["nsenter", f"--target={self.pid}", "--net", "--mount", "--root", "--wd", *command]
        with log.open("ab") as out:
            process = subprocess.Popen(entered, stdout=out, stderr=out, env={**os.environ, **(environment or {})})
        try:
            yield process
        finally:
            end(process)

    def get(
        self, address: str, path: str, *, password: tuple[str, str] | None = None, timeout_s: float = 20
    ) -> tuple[int, str]:
        """Status and body, asked from this host. `address` is HOST:PORT."""
        name, _, port = address.rpartition(":")
        # The socket keeps the namespace of the thread that made it; the thread ends here.
        with ThreadPoolExecutor(1) as thread:
            connected = thread.submit(self._connect, name, int(port), timeout_s).result()
        return ask(connected, path, password)

    def _connect(self, name: str, port: int, timeout_s: float) -> socket.socket:
        libc = ctypes.CDLL(None, use_errno=True)
        with open(f"/proc/{self.pid}/ns/net") as namespace:
            if libc.setns(namespace.fileno(), _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")
        return socket.create_connection((name, port), timeout_s)


def ask(connected: socket.socket, path: str, password: tuple[str, str] | None = None) -> tuple[int, str]:
    """One GET on a socket that is connected already, which it closes."""
    connection = http.client.HTTPConnection("localhost")
    connection.sock = connected
    headers = {}
    if password is not None:
        headers["Authorization"] = "Basic " + b64encode(":".join(password).encode()).decode()
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@contextmanager
def host() -> Iterator[Host]:
    """A host with nothing but a loopback interface."""
    needs_root()
    needs_program("ip", "nsenter", "unshare")
    with tempfile.TemporaryDirectory() as root:
        holder = subprocess.Popen(
            ["unshare", "--net", "--mount", "sh", "-c", _MAKE_ROOT, "sh", root],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "ready\n", "the host could not be made"
            assert Path(f"/proc/{holder.pid}/root/.machine").is_dir(), "or else files would go to the machine"
            yield Host(holder.pid)
        finally:
            # Closes the pipe, at which the holder ends; the kernel takes down what it mounted.
            holder.communicate(timeout=30)


def join(left: Host, left_address: str, right: Host, right_address: str, name: str) -> None:
    """A veth pair between two hosts. Addresses have a prefix length, such as 10.0.0.1/30."""
    left.ip(f"link add {name} type veth peer name {name} netns {right.pid}")
    for end_of_pair, address in ((left, left_address), (right, right_address)):
        end_of_pair.ip(f"address add {address} dev {name}", f"link set {name} up")
