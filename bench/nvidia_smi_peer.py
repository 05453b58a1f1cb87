"""The nvidiasmi dialect and nvidia_gpu_exporter at the same time, on the fake NVML library: series, types and values.

    python -m bench.nvidia_smi_peer PROGRAM [--record] [--dashboards FILE...]

PROGRAM is nvidia_gpu_exporter, built elsewhere: this project does not depend on Go. It runs
tests/testbeds/nvidia_smi.py in place of nvidia-smi. Then it runs on the library itself, with its NVML backend.
`--record` writes what it served to the files with which a test compares the dialect. `--dashboards` runs the queries of
the exporter's dashboards on both, as bench.peer_queries does; they are not part of this project.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.peer_queries import run_queries
from bench.table import show
from faces.dialects.test_nvidiasmi import (
    MIG_LINES,
    NVML_FAMILIES,
    NVML_RECORDING,
    RECORDING,
    compare,
    node_of_two,
    recorded_text,
    served,
)
from prometheus_server import answers, free_port
from testbeds import nvidia_smi
from testbeds.node_exporter import fetched
from waiting import until


@contextmanager
def running_peer(program: str, environment: dict[str, str], *backend: str) -> Iterator[str]:
    address = f"127.0.0.1:{free_port()}"
    command = [program, f"--web.listen-address={address}", "--collect.compute-apps", *backend]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: answers(f"http://{address}/metrics"), "nvidia_gpu_exporter answers")
        yield f"http://{address}/metrics"
    finally:
        process.kill()
        process.wait()


WITH_NVIDIA_SMI = (
    f"--nvidia-smi-command={sys.executable} {nvidia_smi.__file__}",
    f"--query-field-names={','.join(nvidia_smi.FIELDS)}",
)
WITH_NVML = ("--collect.backend=nvml",)


def run(program: str, backend: tuple[str, ...], *lines: str) -> tuple[str, str]:
    """What the agent and the exporter serve of the same GPUs."""
    with tempfile.TemporaryDirectory() as directory, node_of_two(Path(directory)) as node:
        node.driver.say(*lines)
        with running_peer(program, node.peer_environment(), *backend) as address:
            fetched(address)
            # Activity is measured between two reads.
            time.sleep(2)
            theirs = fetched(address)
        return served(node), theirs


def report(title: str, ours: str, theirs: str) -> bool:
    """Prints the numbers and what is missing or different; whether anything is."""
    result = compare(ours, theirs)
    rows = [
        ("series of the exporter", result.theirs),
        ("equal here", result.equal),
        ("left out here on purpose", len(result.left_out)),
        ("missing here", len(result.missing)),
        ("different", len(result.different)),
    ]
    show(title, ("what", "number"), rows)
    print("\n".join([*result.missing, *result.different]))
    return bool(result.missing or result.different)


def run_dashboards(program: str, dashboards: list[Path]) -> bool:
    """Prints the queries of both; whether any has less here."""
    with (
        tempfile.TemporaryDirectory() as directory,
        node_of_two(Path(directory)) as node,
        running_peer(program, node.peer_environment(), *WITH_NVIDIA_SMI) as url,
    ):
        peer = url.removeprefix("http://").removesuffix("/metrics")
        return run_queries("nvidiasmi", peer, dashboards, {**os.environ, **node.driver.environment()})


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the nvidiasmi dialect with nvidia_gpu_exporter.")
    parser.add_argument("program")
    parser.add_argument("--record", action="store_true", help="write what the exporter served for the tests")
    parser.add_argument("--dashboards", nargs="*", type=Path, default=[], help="dashboards whose queries are compared")
    given = parser.parse_args()
    ours, theirs = run(given.program, WITH_NVIDIA_SMI)
    failed = report("The nvidiasmi dialect and nvidia_gpu_exporter with nvidia-smi", ours, theirs)
    ours_nvml, theirs_nvml = run(given.program, WITH_NVML, *MIG_LINES)
    # Not judged: this backend has fields that the agent does not read, and misses functions that the fake lacks.
    report("The nvidiasmi dialect and nvidia_gpu_exporter with NVML, MIG included", ours_nvml, theirs_nvml)
    if given.record:
        RECORDING.write_text(recorded_text(theirs))
        lines = [line for line in recorded_text(theirs_nvml).splitlines() if _NVML_FAMILY.search(line)]
        NVML_RECORDING.write_text("\n".join(lines) + "\n")
    if given.dashboards:
        failed |= run_dashboards(given.program, given.dashboards)
    sys.exit(failed)


_NVML_FAMILY = re.compile(rf"^(# (HELP|TYPE) )?({'|'.join(NVML_FAMILIES)})")


if __name__ == "__main__":
    main()
