"""An ordinary torch program for the tests of the pauser on a real GPU; it knows nothing of gpucommons.

python gpu_program.py SIZE GIB [UID]    holds GIB of random numbers, multiplies SIZE x SIZE matrices for ever.
Prints `ready`. Each line on standard input is answered by `PRODUCTS CHECKSUM`: how far it is, what its memory holds.
"""

import os
import sys
import threading

import torch


def main() -> None:
    size, gib = int(sys.argv[1]), float(sys.argv[2])
    if len(sys.argv) > 3:
        os.setuid(int(sys.argv[3]))
    matrix = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    words = int(gib * (1 << 30)) // 8
    held = torch.randint(-(1 << 62), 1 << 62, (words,), device="cuda", dtype=torch.int64)
    torch.cuda.synchronize()
    products = 0
    asked = threading.Event()

    def listen() -> None:
        for _ in sys.stdin:
            asked.set()
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        for _ in range(20):
            matrix @ matrix
        torch.cuda.synchronize()
        products += 20
        if asked.is_set():
            asked.clear()
            # Whole numbers: the sum wraps around and depends on every bit, in any order of adding.
            sys.stdout.write(f"{products} {int(held.sum()) if words else 0}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
