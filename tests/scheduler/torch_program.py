"""An unmodified torch program: bf16 matrix products of one size, for ever. It knows nothing of a scheduler.

python torch_program.py SIZE COUNTER [IDLE_S [GIB]]   adds its products to the 8 bytes of COUNTER; idles for IDLE_S
first; holds GIB of memory, and ends with an error if that changes.
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
    words = int(float(sys.argv[4]) * (1 << 30)) // 8 if len(sys.argv) > 4 else 0
    held = torch.arange(words, device="cuda", dtype=torch.int64)
    checksum = int(held.sum())
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
        if products % (1000 * each) < each and int(held.sum()) != checksum:
            sys.exit("the memory has changed")
        struct.pack_into("=Q", counter, 0, products)


if __name__ == "__main__":
    main()
