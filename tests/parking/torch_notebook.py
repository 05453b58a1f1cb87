"""An unmodified torch program that waits for its user, as a notebook does; it knows nothing of gpucommons.

python torch_notebook.py GIB    holds GIB of random numbers and a CUDA graph. Prints `ready`.

Each line on standard input is a cell: it replays the graph once and prints `REPLAYS PRODUCT CHECKSUM`: how often the
graph ran, the sum of what it computed, and what the memory holds.
"""

import sys

import torch


def answer(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    words = int(float(sys.argv[1]) * (1 << 30)) // 8
    torch.manual_seed(7)
    held = torch.randint(-(1 << 62), 1 << 62, (words,), device="cuda", dtype=torch.int64)
    left = torch.randint(-8, 8, (1024, 1024), device="cuda", dtype=torch.int32).float()
    product = torch.empty_like(left)
    replays = torch.zeros((), device="cuda", dtype=torch.int64)
    torch.mm(left, left, out=product)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.mm(left, left, out=product)
        replays.add_(1)
    torch.cuda.synchronize()
    answer("ready")
    for _ in sys.stdin:
        product.zero_()
        graph.replay()
        torch.cuda.synchronize()
        # Whole numbers: the sum wraps around and depends on every bit, in any order of adding.
        answer(f"{int(replays)} {int(product.double().sum())} {int(held.sum())}")


if __name__ == "__main__":
    main()
