"""Programs as users write them, for bench.arrivals. They know nothing of gpucommons.

python arrival_programs.py cuda MIB       a bare CUDA program: prints `ready SECONDS`, its start without Python's
python arrival_programs.py steps 0        at each line makes a step of a start, and prints which
python arrival_programs.py torch GIB      prints `imported`, at a line allocates GIB, prints `ok SECONDS` or `oom`
python arrival_programs.py ballast GIB    holds GIB and computes a little all the time, so that it is not idle
python arrival_programs.py shards FOLDER  prints `imported`, at a line loads the model of this folder, prints `ok`
python arrival_programs.py save FOLDER GIB    writes such a model, in shards of 1 GB
python arrival_programs.py server GIB     an HTTP server with threads around a transformers model: prints its port
python arrival_programs.py loader GIB     trains with a DataLoader of two worker processes; a line makes a step
python arrival_programs.py graph GIB      a line replays a CUDA graph
python arrival_programs.py pair GIB       two CUDA processes that share nothing; at a line both answer
python arrival_programs.py shared GIB     torch.multiprocessing: a second process uses memory of the first

All end with their standard input.
"""

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any


def answer(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def wait_for_the_end() -> None:
    for _ in sys.stdin:
        pass


def end_with_input() -> None:
    wait_for_the_end()
    os._exit(0)


def cuda(mib: int) -> None:
    driver = ctypes.CDLL("libcuda.so.1")
    begun_s = time.monotonic()
    device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    codes = [
        driver.cuInit(0),
        driver.cuDeviceGet(ctypes.byref(device), 0),
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
        driver.cuCtxSetCurrent(context),
        driver.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(mib << 20)),
        driver.cuMemsetD8_v2(memory, ctypes.c_ubyte(7), ctypes.c_size_t(mib << 20)),
    ]
    answer(f"ready {time.monotonic() - begun_s:.4f}" if not any(codes) else f"failed {codes}")
    wait_for_the_end()


def torch_program(gib: float) -> None:
    import torch

    answer("imported")
    sys.stdin.readline()
    begun_s = time.monotonic()
    # As many programs do. It asks NVML.
    torch.cuda.device_count()
    try:
        held = torch.zeros(int(gib * 2**30), dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        answer(f"ok {time.monotonic() - begun_s:.2f} {int(held[-1])}")
    except torch.OutOfMemoryError:
        answer("oom")
    wait_for_the_end()


def steps(_: float) -> None:
    """One step after each line."""
    import torch

    answer("imported")
    sys.stdin.readline()
    answer(f"asked whether there is a GPU: {torch.cuda.is_available()}")
    sys.stdin.readline()
    answer(f"asked for their number: {torch.cuda.device_count()}")
    sys.stdin.readline()
    torch.zeros(1, device="cuda")
    answer("has a context")
    sys.stdin.readline()


def ballast(gib: float) -> None:
    import torch

    held = torch.zeros(int(gib * 2**30), dtype=torch.uint8, device="cuda")
    small = torch.zeros(1024, 1024, device="cuda")
    torch.cuda.synchronize()
    answer("ready")
    threading.Thread(target=end_with_input, daemon=True).start()
    while True:
        small @ small
        torch.cuda.synchronize()
        held[0] += 1
        time.sleep(0.005)


def config(gib: float) -> Any:
    from transformers import LlamaConfig

    # A layer of this width has 0.38 GiB in bfloat16.
    layers = max(1, round(gib / 0.38))
    return LlamaConfig(
        hidden_size=4096,
        intermediate_size=11008,
        num_hidden_layers=layers,
        num_attention_heads=32,
        vocab_size=8000,
        max_position_embeddings=128,
    )


def model_of(gib: float) -> Any:
    """On the GPU, with the same weights each time."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config(gib))
    torch.set_default_dtype(torch.float32)
    return model.eval()


def save(folder: str, gib: float) -> None:
    model_of(gib).to("cpu").save_pretrained(folder, max_shard_size="1GB")


def shards(folder: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    answer("imported")
    sys.stdin.readline()
    begun_s = time.monotonic()
    try:
        torch.set_default_dtype(torch.bfloat16)
        model = AutoModelForCausalLM.from_pretrained(folder).to("cuda")
        amount = sum(weights.numel() * weights.element_size() for weights in model.parameters())
        torch.cuda.synchronize()
        answer(f"ok {time.monotonic() - begun_s:.2f} {amount / 2**30:.1f}")
    except torch.OutOfMemoryError:
        answer("oom")
    wait_for_the_end()


def server(gib: float) -> None:
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    import torch

    model = model_of(gib)
    tokens = torch.arange(16, device="cuda")[None]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with torch.no_grad():
                text = f"{model(tokens).logits.double().sum().item():.6f}"
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            return

    serving = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    answer(str(serving.server_port))
    wait_for_the_end()


def loader(gib: float) -> None:
    import torch
    from torch.utils.data import DataLoader

    rows = list(range(4096))
    held = torch.arange(int(gib * 2**30) // 8, device="cuda")
    batches = iter(DataLoader(rows, batch_size=4, num_workers=2, multiprocessing_context="fork"))
    answer("ready")
    for _ in sys.stdin:
        answer(str(int(held[next(batches).cuda()].sum()) + int(held.sum())))


def graph(gib: float) -> None:
    import torch

    held = torch.arange(int(gib * 2**30) // 8, device="cuda")
    captured = torch.cuda.CUDAGraph()
    # A graph is captured after a first call outside of it.
    held.sum()
    torch.cuda.synchronize()
    with torch.cuda.graph(captured):
        result = held.sum()
    answer("ready")
    for _ in sys.stdin:
        captured.replay()
        answer(str(int(result)))


def _sums_of_own(gib: float, orders: Any, answers: Any) -> None:
    import torch

    held = torch.arange(int(gib * 2**30) // 8, device="cuda")
    answers.put(int(held.sum()))
    while orders.get():
        answers.put(int(held.sum()))


def _sums_of_given(_: float, orders: Any, answers: Any) -> None:
    while (held := orders.get()) is not None:
        answers.put(int(held.sum()))


def _two_processes(gib: float, worker: Any, order_of: Any) -> None:
    import torch
    import torch.multiprocessing

    held = torch.arange(int(gib * 2**30) // 8, device="cuda")
    spawn = torch.multiprocessing.get_context("spawn")
    orders, answers = spawn.Queue(), spawn.Queue()
    spawn.Process(target=worker, args=(gib, orders, answers), daemon=True).start()
    orders.put(order_of(held))
    first = answers.get()
    answer("ready")
    for _ in sys.stdin:
        orders.put(order_of(held))
        answer(f"{int(held.sum())} {answers.get()} {first}")


def pair(gib: float) -> None:
    _two_processes(gib / 2, _sums_of_own, lambda held: True)


def shared(gib: float) -> None:
    _two_processes(gib, _sums_of_given, lambda held: held)


PROGRAMS: dict[str, Callable[[float], None]] = {
    "steps": steps,
    "torch": torch_program,
    "ballast": ballast,
    "server": server,
    "loader": loader,
    "graph": graph,
    "pair": pair,
    "shared": shared,
}

if __name__ == "__main__":
    kind, *values = sys.argv[1:]
    if kind == "cuda":
        cuda(int(values[0]))
    elif kind == "save":
        save(values[0], float(values[1]))
    elif kind == "shards":
        shards(values[0])
    else:
        PROGRAMS[kind](float(values[0]))
