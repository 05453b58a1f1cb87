"""An unmodified torch program: bf16 matrix products of one size, for ever. It knows nothing of a scheduler.

python torch_program.py SIZE COUNTER [IDLE_S]   adds its products to the 8 bytes of COUNTER; idles for IDLE_S first.
"""

import mmap
import struct
import sys
import time

import torch

# What is submitted before the next synchronisation: a few milliseconds of work.
_PRODUCTS = {512: 200, 1024: 200, 1536: 100, 2048: 80, 4096: 20, 8192: 4}


def main() -> None:
    size, path = int(sys.argv[1]), sys.argv[2]
    idle_s = float(sys.argv[3]) if len(sys.argv) > 3 else 0.0
    with open(path, "r+b") as file:
        counter = mmap.mmap(file.fileno(), 8)
    matrix = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    matrix @ matrix
    torch.cuda.synchronize()
    products, each = 1, _PRODUCTS[size]
    struct.pack_into("=Q", counter, 0, products)
    time.sleep(idle_s)
    while True:
        for _ in range(each):
            matrix @ matrix
        torch.cuda.synchronize()
        products += each
        struct.pack_into("=Q", counter, 0, products)


if __name__ == "__main__":
    main()
