"""A torch job under the scheduler: bf16 matrix products of one size, in turns, for a while. Run as a program.

python gpu_job.py SOCKET|none SIZE SECONDS POD   prints `ready`, waits for a line, prints products per second.
"""

import sys
import time
from contextlib import AbstractContextManager, nullcontext

import torch

from gpucommons.scheduler.protocol.client import NvshareClient

# What a turn submits before it looks whether it must end: a few milliseconds of work.
_PRODUCTS = {512: 200, 4096: 20}


def main() -> None:
    socket_path, size, seconds, pod = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
    matrix = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    matrix @ matrix
    torch.cuda.synchronize()
    client = None
    if socket_path != "none":
        client = NvshareClient(socket_path, pod=pod, namespace="test", gpu="0", synchronize=torch.cuda.synchronize)
        client.report_memory(torch.cuda.memory_reserved())
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    products, each = 0, _PRODUCTS[size]
    begun = time.monotonic()
    while time.monotonic() - begun < seconds:
        turn: AbstractContextManager[None] = nullcontext() if client is None else client.turn()
        with turn:
            for _ in range(each):
                matrix @ matrix
            torch.cuda.synchronize()
        products += each
    elapsed = time.monotonic() - begun
    if client is not None:
        client.close()
    sys.stdout.write(f"{products / elapsed}\n")


if __name__ == "__main__":
    main()
