"""Runs as the first process of its own namespaces (mounts, network, processes): a small machine that the test knows
completely. Prints the results as one JSON document. test_against_node_exporter.py starts it."""

import ctypes
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

from faces.dialects.nodeexporter.views import INTERVAL_S, OFTEN, served, views
from running import command_process, running_agent
from testbeds.fuse import HungFilesystem
from waiting import until

# More than a page of the kernel's mount table.
MANY_MOUNTS = 80


def mount_tmpfs(directory: Path, *options: str) -> None:
    directory.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", ",".join(("size=1m", *options)), "test fs", directory], check=True)


def some_device() -> None:
    """A kernel may lack some kinds."""
    for kind in ("dummy", "ifb", "veth"):
        if subprocess.run(["ip", "link", "add", "made0", "type", kind], capture_output=True).returncode == 0:
            break
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["ip", "link", "set", "made0", "up"], check=True)


def compare(root: Path, rounds: int) -> object:
    mount_tmpfs(root / "with space")
    mount_tmpfs(root / "with\ttab")
    mount_tmpfs(root / "read only", "ro")
    for number in range(MANY_MOUNTS):
        mount_tmpfs(root / f"one of many {number}")
    return views(rounds)


def hung(root: Path) -> object:
    """The agent's view while a file system hangs, and after it answers; a single sample while it hangs."""
    mount_tmpfs(root / "lives")
    (root / "hung").mkdir()
    filesystem = HungFilesystem(root / "hung")
    label = f'mountpoint="{root}/hung"'
    with running_agent("--interval", INTERVAL_S, environment=OFTEN) as agent:
        ours = partial(served, agent)
        until(lambda: "node_filesystem_device_error" in ours(), "file systems are read")
        while_hung = ours()
        sampled = command_process("sample", "--dialect", "nodeexporter")
        filesystem.answer()
        size = f'node_filesystem_size_bytes{{device="hung",{label}'
        until(lambda: size in ours(), "it is read again once its call has returned")
        return {"while_hung": while_hung, "sampled": sampled.stdout, "after": ours(), "ended": agent.stop()}


def main(scene: str, root: str, rounds: str) -> None:
    # Mounts must not propagate to the outside.
    ctypes.CDLL(None).mount(b"none", b"/", None, 1 << 18 | 1 << 14, None)
    some_device()
    seen = compare(Path(root), int(rounds)) if scene == "compare" else hung(Path(root))
    json.dump(seen, sys.stdout)
    sys.stdout.flush()
    # This is the first process of the namespace: the kernel ends its children with it.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
