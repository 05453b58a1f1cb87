"""GPM samples at moments that another thread than the reader's chooses, within the reader's session.

A process has one session with NVML, with a count of its users. A user of its own would keep the reader from restarting
the session: a lost GPU would not be found again, and a change of the MIG mode would wait. So the reader lends its
handles, and takes them back before the session ends.
"""

import threading
from collections.abc import Mapping
from typing import Final, NamedTuple

from gpucommons.model.gpu import GpmReading
from gpucommons.sources.nvml import codes
from gpucommons.sources.nvml.call import Handle
from gpucommons.sources.nvml.gpm import GpmSampler

# A sample takes 0.1 ms. A borrower that holds the lock for this long is in a call that does not return.
_TAKE_BACK_S: Final = 0.25


class GpmTarget(NamedTuple):
    """A GPU, or one GPU instance of it."""

    handle: Handle
    gpu_instance_id: int | None = None


class GpmAccess:
    """`supports` is for any thread, `lend` and `take_back` for the reader's, the rest for one borrower's thread."""

    def __init__(self) -> None:
        self._targets: Mapping[str, GpmTarget] = {}
        self._samplers: dict[str, GpmSampler] = {}
        # Held during the borrower's calls, so that the session does not end in the middle of one.
        self._lock = threading.Lock()

    def supports(self, gpu_uuid: str) -> bool:
        return gpu_uuid in self._targets

    # -- the reader

    def lend(self, targets: Mapping[str, GpmTarget]) -> None:
        """What has GPM at the moment, by UUID. The mapping is not changed afterwards."""
        self._targets = targets

    def take_back(self) -> bool:
        """Free the samples, so that the session can end. False if a call of the borrower does not return."""
        if not self._lock.acquire(timeout=_TAKE_BACK_S):
            return False
        try:
            self._targets = {}
            self._free()
        finally:
            self._lock.release()
        return True

    # -- the borrower

    def first(self, gpu_uuid: str) -> bool:
        """Take the first sample; whether that succeeded."""
        with self._lock:
            sampler = self._sampler(gpu_uuid)
            if sampler is None:
                return False
            sampler.clear()
            return sampler.invoke() == codes.OK

    def second(self, gpu_uuid: str) -> GpmReading | None:
        """Take the second sample and compare; None if that failed, or if the session has changed since the first."""
        with self._lock:
            sampler = self._samplers.get(gpu_uuid)
            if sampler is None or sampler.invoke() != codes.OK:
                return None
            sampler.store()
            reading = sampler.reading
            sampler.clear()
            return reading

    def release(self) -> None:
        """Free the samples."""
        with self._lock:
            self._free()

    def _sampler(self, gpu_uuid: str) -> GpmSampler | None:
        """Its buffers are kept for the next time, and freed with the GPU or MIG device."""
        targets = self._targets
        for gone in self._samplers.keys() - targets.keys():
            self._samplers.pop(gone).close()
        target = targets.get(gpu_uuid)
        if target is None:
            return None
        if gpu_uuid not in self._samplers:
            try:
                self._samplers[gpu_uuid] = GpmSampler(target.handle, target.gpu_instance_id)
            except codes.SessionLost:
                return None
        return self._samplers[gpu_uuid]

    def _free(self) -> None:
        for sampler in self._samplers.values():
            sampler.close()
        self._samplers = {}
