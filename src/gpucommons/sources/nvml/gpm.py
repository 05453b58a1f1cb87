"""GPM, the profiling figures of Hopper and newer: each is the difference of two samples, one pass apart.

Two samples take turns: each pass fills the older one and compares it with the other. Never waits.
"""

import ctypes
from ctypes import byref
from struct import Struct

import pynvml

from gpucommons.model.gpu import GpmReading
from gpucommons.sources.nvml import codes, library
from gpucommons.sources.nvml.call import ABOVE_LIMIT, Handle

_PERCENT = 0.01
_MEBIBYTES = 2**20
# Rounding puts a busy unit a hair over its maximum; more than that is not a measurement.
_MOST = {_PERCENT: 101.0, _MEBIBYTES: float(2**24)}

# field of GpmReading, metric id of NVML, factor
_METRICS: tuple[tuple[str, int, float], ...] = (
    ("graphics_ratio", 1, _PERCENT),
    ("sm_ratio", 2, _PERCENT),
    ("sm_occupancy_ratio", 3, _PERCENT),
    ("tensor_ratio", 5, _PERCENT),
    ("fp64_ratio", 11, _PERCENT),
    ("fp32_ratio", 12, _PERCENT),
    ("fp16_ratio", 13, _PERCENT),
    ("integer_ratio", 4, _PERCENT),
    ("tensor_double_ratio", 6, _PERCENT),
    ("tensor_half_ratio", 7, _PERCENT),
    ("tensor_integer_ratio", 9, _PERCENT),
    ("dram_ratio", 10, _PERCENT),
    ("pcie_tx_bytes_per_s", 20, _MEBIBYTES),
    ("pcie_rx_bytes_per_s", 21, _MEBIBYTES),
    ("nvlink_tx_bytes_per_s", 61, _MEBIBYTES),
    ("nvlink_rx_bytes_per_s", 60, _MEBIBYTES),
)
_FIELD = {name: index for index, name in enumerate(GpmReading._fields)}
_METRIC_BYTES = ctypes.sizeof(pynvml.c_nvmlGpmMetric_t)
_METRICS_AT = pynvml.c_nvmlGpmMetricsGet_t.metrics.offset
_NOT_SUPPORTED = 3


class _Comparison:
    """One direction of the turn: from `first` to `second`, with its request and how to read the answer."""

    def __init__(self, first: object, second: object, metrics: tuple[tuple[str, int, float], ...]) -> None:
        self.request = pynvml.c_nvmlGpmMetricsGet_t()
        self.request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        self.request.numMetrics = len(metrics)
        self.request.sample1, self.request.sample2 = first, second
        for position, (_, metric, _) in enumerate(metrics):
            self.request.metrics[position].metricId = metric
        self.reference = byref(self.request)
        self.buffer = memoryview(self.request).cast("B")
        self.newest = second


class GpmSampler:
    """GPM of a whole GPU, or of one GPU instance of it. `invoke` and `store` are those of a Call."""

    def __init__(self, handle: Handle, gpu_instance_id: int | None = None) -> None:
        # The caller has asked whether the driver has GPM: these exist.
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
        first, second = self._samples
        self._comparisons = (
            _Comparison(second, first, self._metrics),
            _Comparison(first, second, self._metrics),
        )
        # Each metric is its id, its return code and its value; pointers to texts follow. Reading them all at
        # once costs a tenth of reading them through ctypes.
        self._layout = Struct("=" + f"IId{_METRIC_BYTES - 16}x" * len(self._metrics))
        self._plan = tuple(
            (3 * position + 1, _FIELD[name], factor, _MOST[factor])
            for position, (name, _, factor) in enumerate(self._metrics)
        )

    def invoke(self) -> int:
        """Take a sample and, from the second on, compare it with the one before."""
        if self._sample is None or self._compare is None:
            return _NOT_SUPPORTED
        comparison = self._comparisons[self._turn]
        code = self._sample(*self._arguments, comparison.newest)
        if code:
            self.clear()
            return code
        self._turn ^= 1
        self._taken += 1
        return codes.OK if self._taken == 1 else self._compare(comparison.reference)

    def store(self) -> str | None:
        if self._taken < 2:
            return None
        answer = self._layout.unpack_from(self._comparisons[self._turn ^ 1].buffer, _METRICS_AT)
        values: list[float | None] = [None] * len(_FIELD)
        dropped = None
        refused = False
        for at, field, factor, most in self._plan:
            code, value = answer[at], answer[at + 1]
            if code:
                refused = refused or code == _NOT_SUPPORTED
            elif 0.0 <= value <= most:
                scaled = value * factor
                values[field] = 1.0 if factor == _PERCENT and scaled > 1.0 else scaled
            else:
                dropped = ABOVE_LIMIT
        self.reading = GpmReading._make(values)
        if refused:
            self._leave_out_refused(answer)
        return dropped

    def _leave_out_refused(self, answer: tuple[float, ...]) -> None:
        """What this GPU cannot tell (NVLink on a board without) is not asked for again."""
        self._metrics = tuple(
            metric for position, metric in enumerate(self._metrics) if answer[3 * position + 1] != _NOT_SUPPORTED
        )
        self._prepare()

    def clear(self) -> None:
        """What comes next is not comparable with what was."""
        self.reading, self._taken = None, 0

    def close(self) -> None:
        free = library.function("nvmlGpmSampleFree")
        for sample in self._samples:
            if free is not None:
                free(sample)
        self._samples = []


def _allocate() -> object:
    sample = pynvml.c_nvmlGpmSample_t()
    allocate = library.function("nvmlGpmSampleAlloc")
    code = codes.OK if allocate is None else allocate(byref(sample))
    if code in codes.SESSION_LOST:
        raise codes.SessionLost(code)
    return sample
