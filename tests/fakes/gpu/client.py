"""An nvshare client on a fake GPU: computes while it holds the scheduler's lock.

python client.py SOCKET LIBRARY GPUS JOB VERSION MEMORY_BYTES    Run as a program, until it is killed
or the process that started it ends.
"""

import os
import sys
import time
from pathlib import Path
from typing import cast

from fakes.gpu.account import GpuAccount
from gpucommons.scheduler.protocol.client import NvshareClient
from gpucommons.scheduler.protocol.wire import Version

_STEP_S = 0.005


def main(socket: str, library: str, gpus: str, job: str, version: str, memory_bytes: str) -> None:
    account = GpuAccount(Path(library), Path(gpus))
    number, parent = int(job), os.getppid()
    with NvshareClient(socket, version=cast(Version, int(version)), timeout_s=30.0) as client:
        account.begin(number, os.getpid(), may_run=False)
        client.report_memory(int(memory_bytes))
        while os.getppid() == parent:
            with client.turn():
                account.set_may_run(number, True)
                time.sleep(_STEP_S)
                account.set_may_run(number, False)


if __name__ == "__main__":
    main(*sys.argv[1:])
