"""Work for a GPU through torch or cupy. Imports the library only when it is used, and never installs it."""

import importlib
import importlib.util
import time
from collections.abc import Callable
from typing import Any

from gpucommons.stress.loop import Worker

_SIZE = 2048
# Matrix products to queue before waiting: enough to leave no gaps, few enough to stop soon.
_QUEUED = 4

INSTALL = {
    "torch": "pip install torch",
    "cupy": "pip install cupy-cuda12x",
}


class BackendMissing(Exception):
    """One line: which library is missing and how to install it."""


def choose(requested: str | None) -> str:
    names = [requested] if requested else list(INSTALL)
    for name in names:
        if importlib.util.find_spec(name) is not None:
            return name
    how = " or ".join(f"'{INSTALL[name]}'" for name in names)
    raise BackendMissing(f"--backend: {' or '.join(names)} is not installed; install it with {how}")


def worker(name: str) -> Worker:
    """A worker on the first GPU that CUDA shows. Raises BackendMissing if the library finds no GPU."""
    library: Any = importlib.import_module(name)
    return _torch(library) if name == "torch" else _cupy(library)


class _Worker:
    def __init__(self, launch: Callable[[], object], wait: Callable[[], object]) -> None:
        self._launch = launch
        self._wait = wait

    def work(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for _ in range(_QUEUED):
                self._launch()
            self._wait()


def _torch(torch: Any) -> Worker:
    if not torch.cuda.is_available():
        raise BackendMissing(
            "torch finds no GPU: it may be a CPU build; install the CUDA build with 'pip install torch'"
        )
    left = torch.randn(_SIZE, _SIZE, device="cuda")
    right = torch.randn(_SIZE, _SIZE, device="cuda")
    out = torch.empty_like(left)
    return _Worker(lambda: torch.matmul(left, right, out=out), torch.cuda.synchronize)


def _cupy(cupy: Any) -> Worker:
    try:
        if cupy.cuda.runtime.getDeviceCount() < 1:
            raise BackendMissing("cupy finds no GPU; check the driver with nvidia-smi")
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise BackendMissing(f"cupy finds no GPU: {error}; check the driver with nvidia-smi") from error
    left = cupy.random.rand(_SIZE, _SIZE, dtype=cupy.float32)
    right = cupy.random.rand(_SIZE, _SIZE, dtype=cupy.float32)
    out = cupy.empty_like(left)
    return _Worker(lambda: cupy.matmul(left, right, out=out), cupy.cuda.runtime.deviceSynchronize)
