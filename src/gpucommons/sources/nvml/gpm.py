"""GPM, the profiling metrics of Hopper and newer GPUs: each is the difference of two samples.

The reader takes samples one pass apart; another thread may take them at moments that it chooses, within the reader's
session.
"""

import ctypes
import threading
from collections.abc import Mapping, Sequence
from ctypes import byref
from operator import itemgetter, mul
from struct import Struct
from typing import Final, NamedTuple

from gpucommons.model.gpu import GpmReading
from gpucommons.sources.nvml import header, library
from gpucommons.sources.nvml.calls import ABOVE_LIMIT, Handle

# GPM, the profiling metrics of Hopper and newer GPUs: each is the difference of two samples, one pass apart.
#
# Two buffers alternate: each pass fills the older one and compares it with the other. Never waits.

_PERCENT = 0.01
_MEBIBYTES = 2.0**20
# Rounding puts a busy unit slightly above its maximum; a larger value is not a measurement.
_MAX_RATIO = 1.01
_MAX_BYTES_PER_S = 2.0**44

# Field of GpmReading and metric id of NVML: first the ratios, then the rates.
_METRICS: tuple[tuple[str, int], ...] = (
    ("graphics_ratio", 1),
    ("sm_ratio", 2),
    ("sm_occupancy_ratio", 3),
    ("tensor_ratio", 5),
    ("fp64_ratio", 11),
    ("fp32_ratio", 12),
    ("fp16_ratio", 13),
    ("integer_ratio", 4),
    ("tensor_double_ratio", 6),
    ("tensor_half_ratio", 7),
    ("tensor_integer_ratio", 9),
    ("dram_ratio", 10),
    ("pcie_tx_bytes_per_s", 20),
    ("pcie_rx_bytes_per_s", 21),
    ("nvlink_tx_bytes_per_s", 61),
    ("nvlink_rx_bytes_per_s", 60),
)
_METRIC_BYTES = ctypes.sizeof(header.GpmMetric)
_NOT_SUPPORTED = 3
_TIMEOUT = 10
# Two threads in GPM calls at once crash the process in the driver's library (580, on an H200). A sample takes 0.1 ms:
# a thread that waits this long waits for a call that does not return.
_LOCK = threading.Lock()
_LOCK_S = 0.25


class _Comparison:
    """The request to compare two samples, and the buffer with the result. One serves all passes: it is 19 kB long."""

    def __init__(self, metrics: tuple[tuple[str, int], ...]) -> None:
        self.request = header.GpmMetricsGet()
        self.request.version = header.NVML_GPM_METRICS_GET_VERSION
        self.request.count = len(metrics)
        for position, (_, metric) in enumerate(metrics):
            self.request.metrics[position].id = metric
        self.reference = byref(self.request)
        self.buffer = memoryview(self.request).cast("B")


class GpmSampler:
    """GPM of a whole GPU or of one GPU instance. `invoke` and `store` are those of a Call."""

    def __init__(self, handle: Handle, gpu_instance_id: int | None = None) -> None:
        # The caller has checked that the driver supports GPM: these functions exist.
        mig = gpu_instance_id is not None
        self._arguments = (handle, gpu_instance_id) if mig else (handle,)
        self._sample = library.function("nvmlGpmMigSampleGet" if mig else "nvmlGpmSampleGet")
        self._compare = library.function("nvmlGpmMetricsGet")
        self._metrics = _METRICS
        self._samples = [_allocate(), _allocate()]
        if not all(self._samples):
            self._sample = None
        self._prepare()
        self._turn = 0
        self._taken = 0
        self.reading: GpmReading | None = None

    def _prepare(self) -> None:
        self._comparison = _Comparison(self._metrics)
        # Each metric is its id, return code and value, followed by pointers to texts. Unpacking all of them at once
        # costs a tenth of reading them through ctypes.
        self._layout = Struct("=" + f"4xId{_METRIC_BYTES - 16}x" * len(self._metrics))
        is_ratio = [name.endswith("_ratio") for name, _ in self._metrics]
        self._factors = [_PERCENT if ratio else _MEBIBYTES for ratio in is_ratio]
        self._ratios = sum(is_ratio)
        # Metrics that were not requested are taken from the position after the last value, which holds None.
        requested = [name for name, _ in self._metrics]
        places = (requested.index(name) if name in requested else len(requested) for name in GpmReading._fields)
        self._in_order = itemgetter(*places)

    def invoke(self) -> int:
        """Take a sample and, from the second on, compare it with the previous one."""
        if self._sample is None or self._compare is None:
            return _NOT_SUPPORTED
        if not _LOCK.acquire(timeout=_LOCK_S):
            self.clear()
            return _TIMEOUT
        try:
            newest, before = self._samples[self._turn], self._samples[self._turn ^ 1]
            code = self._sample(*self._arguments, newest)
            if code:
                self.clear()
                return code
            self._turn ^= 1
            self._taken += 1
            if self._taken == 1:
                return library.OK
            request = self._comparison.request
            request.sample1, request.sample2 = before, newest
            return self._compare(self._comparison.reference)
        finally:
            _LOCK.release()

    def store(self) -> str | None:
        if self._taken < 2:
            return None
        answer = self._layout.unpack_from(self._comparison.buffer, header.GPM_METRICS_AT)
        returned = answer[::2]
        values = list(map(mul, answer[1::2], self._factors))
        if any(returned) or not self._all_plausible(values):
            return self._store_one_by_one(returned, values)
        self._fill(values)
        return None

    def _all_plausible(self, values: list[float]) -> bool:
        """Whether no value needs a closer check. The sum is compared with itself because NaN does not equal itself."""
        total = sum(values)
        return (
            total == total
            and min(values) >= 0.0
            and max(values[: self._ratios], default=0.0) <= 1.0
            and max(values[self._ratios :], default=0.0) <= _MAX_BYTES_PER_S
        )

    def _store_one_by_one(self, returned: tuple[int, ...], values: list[float]) -> str | None:
        kept: list[float | None] = []
        dropped = None
        for position, (code, value) in enumerate(zip(returned, values, strict=True)):
            ratio = position < self._ratios
            if code:
                kept.append(None)
            elif 0.0 <= value <= (_MAX_RATIO if ratio else _MAX_BYTES_PER_S):
                kept.append(min(value, 1.0) if ratio else value)
            else:
                kept.append(None)
                dropped = ABOVE_LIMIT
        self._fill(kept)
        if _NOT_SUPPORTED in returned:
            self._leave_out_refused(returned)
        return dropped

    def _fill(self, values: Sequence[float | None]) -> None:
        self.reading = GpmReading._make(self._in_order((*values, None)))

    def _leave_out_refused(self, returned: tuple[int, ...]) -> None:
        """Metrics that this GPU does not support, such as NVLink on a board without it, are not requested again."""
        both = zip(self._metrics, returned, strict=True)
        self._metrics = tuple(metric for metric, code in both if code != _NOT_SUPPORTED)
        self._prepare()

    def clear(self) -> None:
        """The next sample is not comparable with the previous one."""
        self.reading, self._taken = None, 0

    def close(self) -> None:
        free = library.function("nvmlGpmSampleFree")
        for sample in self._samples:
            if free is not None:
                free(sample)
        self._samples = []


def _allocate() -> object:
    sample = header.OpaquePointer()
    allocate = library.function("nvmlGpmSampleAlloc")
    code = library.OK if allocate is None else allocate(byref(sample))
    if code in library.SESSION_LOST:
        raise library.SessionLost(code)
    return sample


# GPM samples at moments that another thread than the reader's chooses, within the reader's session.
#
# A process has one session with NVML, with a count of its users. A user of its own would keep the reader from
# restarting the session: a lost GPU would not be found again, and a change of the MIG mode would wait. So the reader
# lends its handles, and takes them back before the session ends.

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
            return sampler.invoke() == library.OK

    def second(self, gpu_uuid: str) -> GpmReading | None:
        """Take the second sample and compare; None if that failed, or if the session has changed since the first."""
        with self._lock:
            sampler = self._samplers.get(gpu_uuid)
            if sampler is None or sampler.invoke() != library.OK:
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
            except library.SessionLost:
                return None
        return self._samplers[gpu_uuid]

    def _free(self) -> None:
        for sampler in self._samplers.values():
            sampler.close()
        self._samplers = {}
