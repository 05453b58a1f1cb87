"""The nvidiasmi dialect and nvidia_gpu_exporter at the same time, on the fake NVML library: series, types and values.

    python -m bench.nvidia_smi_peer PROGRAM [--record FILE]

PROGRAM is nvidia_gpu_exporter, built elsewhere: this project does not depend on Go. It runs
tests/testbeds/nvidia_smi.py in place of nvidia-smi. `--record` writes what it served to a file, with which a test
compares the dialect.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.table import show
from faces.dialects.test_nvidiasmi import compare, node_of_two, recorded_text, served
from prometheus_server import answers, free_port
from testbeds import nvidia_smi
from testbeds.node_exporter import fetched
from waiting import until


@contextmanager
def running_peer(program: str, environment: dict[str, str]) -> Iterator[str]:
    address = f"127.0.0.1:{free_port()}"
    command = [
        program,
        f"--web.listen-address={address}",
        f"--nvidia-smi-command={sys.executable} {nvidia_smi.__file__}",
        f"--query-field-names={','.join(nvidia_smi.FIELDS)}",
        "--collect.compute-apps",
    ]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: answers(f"http://{address}/metrics"), "nvidia_gpu_exporter answers")
        yield f"http://{address}/metrics"
    finally:
        process.kill()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the nvidiasmi dialect with nvidia_gpu_exporter.")
    parser.add_argument("program")
    parser.add_argument("--record", type=Path, help="write what the exporter served")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, node_of_two(Path(directory)) as node:
        with running_peer(given.program, node.peer_environment()) as address:
            theirs = fetched(address)
        ours = served(node)
    result = compare(ours, theirs)
    show(
        "The nvidiasmi dialect and nvidia_gpu_exporter",
        ("what", "number"),
        [
            ("series of the exporter", result.theirs),
            ("equal here", result.equal),
            ("left out here on purpose", len(result.left_out)),
            ("missing here", len(result.missing)),
            ("different", len(result.different)),
        ],
    )
    print("\n".join([*result.missing, *result.different]))
    if given.record is not None:
        given.record.write_text(recorded_text(theirs))
    sys.exit(bool(result.missing or result.different))


if __name__ == "__main__":
    main()
