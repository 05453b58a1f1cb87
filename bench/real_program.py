"""One real program on a GPU, as users write them. It knows nothing of an agent.

`python bench/real_program.py KIND STEPS` builds its model, does a few steps, prints "ready" and rests. It works from a
line "go" on standard input to a line "rest", and ends with its input. For each step (request, burst) it appends two
doubles to the file STEPS: when it was done (CLOCK_MONOTONIC) and how long it took, waiting in line included.

| kind | what it does |
|---|---|
| train | trains GPT-2 of 124 M parameters, batch 16 x 512, bf16, reads the loss in each step |
| conv | trains a convolutional net of 11 M parameters, batch 256 x 3 x 64 x 64, channels last, bf16 |
| small | train with batch 1 x 128: bound by launches |
| loader | train with batch 8 x 256 that waits for its data loader for half of the time |
| serve | a Llama of 1.0 B parameters answers requests of 256 tokens with 8; they come at random, 2 a second |
| burst | 120 products of 4096 every 2 s, as a cell of a notebook |
| loop | products of 4096, each followed by a synchronisation |
| queue | products of 4096, 20 queued at a time |

The random gaps between the requests of serve repeat every 10 s: two windows of whole periods have the same requests and
can be compared.
"""

import itertools
import random
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

_REQUESTS_PER_S, _REQUESTS_PERIOD_S, _BURST_EVERY_S = 2.0, 10.0, 2.0


def _gpt2(batch: int, length: int) -> Callable[[], None]:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config()).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(0, 50257, (batch, length), device="cuda")

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()

    return step


def _conv() -> Callable[[], None]:
    from torch import nn

    def block(inside: int, outside: int, stride: int) -> list[nn.Module]:
        convolution = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        return [convolution, nn.BatchNorm2d(outside), nn.ReLU(inplace=True)]

    widths = [(3, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2)]
    layers = [layer for width in [*widths, (512, 512, 1), (512, 512, 1)] for layer in block(*width)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))
    model = model.cuda().to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    images = torch.randn(256, 3, 64, 64, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (256,), device="cuda")

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()

    return step


def _loader() -> Callable[[], None]:
    step = _gpt2(8, 256)
    torch.cuda.synchronize()
    lengths_s = []
    for _ in range(10):
        begun_s = time.monotonic()
        step()
        lengths_s.append(time.monotonic() - begun_s)
    waits_s = min(lengths_s)

    def wait_and_step() -> None:
        time.sleep(waits_s)
        step()

    return wait_and_step


def _serve() -> Callable[[], None]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=2048, intermediate_size=5632, num_hidden_layers=22, num_attention_heads=32, num_key_value_heads=4
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16).cuda().eval()
    prompt = torch.randint(0, 32000, (1, 256), device="cuda")

    def step() -> None:
        with torch.inference_mode():
            answer: Any = model.generate(
                prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=8, min_new_tokens=8, do_sample=False
            )
            answer.cpu()

    return step


def _products(size: int, count: int) -> Callable[[], None]:
    matrix = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)

    def step() -> None:
        for _ in range(count):
            matrix @ matrix
        torch.cuda.synchronize()

    return step


_KINDS: dict[str, Callable[[], Callable[[], None]]] = {
    "train": lambda: _gpt2(16, 512),
    "conv": _conv,
    "small": lambda: _gpt2(1, 128),
    "loader": _loader,
    "serve": _serve,
    "burst": lambda: _products(4096, 120),
    "loop": lambda: _products(4096, 1),
    "queue": lambda: _products(4096, 20),
}


def _arrivals(kind: str) -> Callable[[], float] | None:
    """The time to the next request; None for a program that works without a break."""
    if kind == "serve":
        dice = random.Random(1)
        gaps = [dice.expovariate(_REQUESTS_PER_S) for _ in range(int(_REQUESTS_PER_S * _REQUESTS_PERIOD_S))]
        period = itertools.cycle([gap * _REQUESTS_PERIOD_S / sum(gaps) for gap in gaps])
        return lambda: next(period)
    return (lambda: _BURST_EVERY_S) if kind == "burst" else None


def main() -> None:
    kind, path = sys.argv[1:3]
    step = _KINDS[kind]()
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    working, ended = threading.Event(), threading.Event()

    def follow_orders() -> None:
        for line in sys.stdin:
            (working.set if line.strip() == "go" else working.clear)()
        ended.set()
        working.set()

    threading.Thread(target=follow_orders, daemon=True).start()
    print("ready", flush=True)
    between = _arrivals(kind)
    with open(path, "ab", buffering=0) as steps:
        while not ended.is_set():
            if not working.is_set():
                working.wait()
                arrived_s = time.monotonic()
            if between is not None:
                arrived_s += between()
                time.sleep(max(0.0, arrived_s - time.monotonic()))
            else:
                arrived_s = time.monotonic()
            step()
            done_s = time.monotonic()
            steps.write(struct.pack("=dd", done_s, done_s - arrived_s))


if __name__ == "__main__":
    main()
