"""Work for a GPU through torch or cupy, whichever is there. Imports them only when asked; installs nothing."""

import importlib
import importlib.util
import time
from collections.abc import Callable
from typing import Any

from gpucommons.stress.loop import Worker

_SIZE = 2048
# So many products are queued before we wait: without gaps between them, but soon to be stopped.
_QUEUED = 4

INSTALL = {
    "torch": "pip install torch",
    "cupy": "pip install cupy-cuda12x",
}


class BackendMissing(Exception):
    """One line that says how to get it."""


def choose(asked: str | None) -> str:
    names = [asked] if asked else list(INSTALL)
    for name in names:
        if importlib.util.find_spec(name) is not None:
            return name
    how = " or ".join(f"'{INSTALL[name]}'" for name in names)
    raise BackendMissing(f"{' or '.join(names)} is not installed; install with {how}, then run this again")


def worker(name: str) -> Worker:
    """On the only GPU that CUDA was left to see. Raises BackendMissing where the library has no GPU."""
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
        raise BackendMissing("torch is installed but sees no GPU; install the CUDA build: pip install torch")
    left = torch.randn(_SIZE, _SIZE, device="cuda")
    right = torch.randn(_SIZE, _SIZE, device="cuda")
    out = torch.empty_like(left)
    return _Worker(lambda: torch.matmul(left, right, out=out), torch.cuda.synchronize)


def _cupy(cupy: Any) -> Worker:
    try:
        if cupy.cuda.runtime.getDeviceCount() < 1:
            raise BackendMissing("cupy is installed but sees no GPU; is the driver loaded?")
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise BackendMissing(f"cupy is installed but sees no GPU: {error}") from error
    left = cupy.random.rand(_SIZE, _SIZE, dtype=cupy.float32)
    right = cupy.random.rand(_SIZE, _SIZE, dtype=cupy.float32)
    out = cupy.empty_like(left)
    return _Worker(lambda: cupy.matmul(left, right, out=out), cupy.cuda.runtime.deviceSynchronize)
