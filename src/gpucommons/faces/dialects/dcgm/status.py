"""DCGM_EXP_GPU_HEALTH_STATUS and DCGM_EXP_P2P_STATUS: states that dcgm-exporter has from DCGM, from NVML's readings.

Of DCGM's health watches, those of memory and heat are judged here, by the same readings: 0 is healthy, 10 a warning,
20 a failure. The others have no series, rather than a healthy one that was not checked. The state of a link between
two GPUs is NVML's: 0 is a working NVLink connection.
"""

from collections.abc import Iterable, Iterator

from gpucommons.faces.dialects.dcgm.labels import LABELS, OPTIONAL
from gpucommons.faces.exposition.families import Family, LabelValues, Point, gauge
from gpucommons.model.gpu import Gpu, GpuReading

_WINDOW_S = 60
_PASS, _WARN, _FAIL = 0, 10, 20
_OK = "DCGM_FR_OK"
_HEAT = 0x020 | 0x040
_LINK_STATUSES = (
    *("OK", "ChipsetNotSupported", "GPUNotSupported", "TopologyNotSupported", "DisabledByRegKey", "NotSupported"),
    "Unknown",
)

HEALTH = gauge(
    "DCGM_EXP_GPU_HEALTH_STATUS",
    "Health of a part of the GPU: 0 healthy, 10 warning, 20 failure.",
    *(*LABELS, "health_watch", "health_error_code"),
    optional=OPTIONAL,
)
P2P = gauge(
    "DCGM_EXP_P2P_STATUS",
    "State of the NVLink connection to another GPU, as a number of NVML: 0 if it works.",
    *(*LABELS, "peer_gpu", "link_status"),
    optional=OPTIONAL,
)

CATALOGUE = (HEALTH, P2P)
Labelled = Iterable[tuple[LabelValues, Gpu]]


def collect(gpus: Labelled, reading: GpuReading, now_wall_s: float) -> Iterator[Family]:
    boards = list(gpus)
    yield HEALTH.of(
        ((*labels, watch, code), result)
        for labels, gpu in boards
        for watch, code, result in (*_memory(gpu), *_heat(gpu, now_wall_s))
    )
    yield P2P.of(point for labels, gpu in boards for point in _links(labels, gpu, reading))


def _memory(gpu: Gpu) -> Iterator[tuple[str, str, int]]:
    """The gravest of what was read; nothing if nothing was."""
    r = gpu.readings
    judged = (
        (r.remapped_rows_failed, "DCGM_FR_ROW_REMAP_FAILURE", _FAIL),
        (r.ecc_uncorrected_volatile, "DCGM_FR_VOLATILE_DBE_DETECTED", _FAIL),
        (r.remapped_rows_pending, "DCGM_FR_PENDING_ROW_REMAP", _WARN),
        (r.retired_pages_pending, "DCGM_FR_PENDING_PAGE_RETIREMENTS", _WARN),
    )
    if any(value is not None for value, _, _ in judged):
        code, result = next(((code, result) for value, code, result in judged if value), (_OK, _PASS))
        yield "MEM", code, result


def _heat(gpu: Gpu, now_wall_s: float) -> Iterator[tuple[str, str, int]]:
    """Whether clocks were lowered for heat now or in a sample of the last minute."""
    masks = [
        sample.throttle_mask for sample in gpu.clock_samples if now_wall_s - _WINDOW_S <= sample.wall_s <= now_wall_s
    ]
    if gpu.readings.throttle_mask is not None:
        masks.append(gpu.readings.throttle_mask)
    if masks:
        hot = any(mask & _HEAT for mask in masks)
        yield "THERMAL", "DCGM_FR_CLOCK_THROTTLE_THERMAL" if hot else _OK, _WARN if hot else _PASS


def _links(labels: LabelValues, gpu: Gpu, reading: GpuReading) -> Iterator[Point]:
    for peer in reading.present_gpus():
        status = reading.peer_links.get((gpu.identity.uuid, peer.identity.uuid))
        if status is not None:
            word = _LINK_STATUSES[min(status, len(_LINK_STATUSES) - 1)]
            yield (*labels, str(peer.identity.index), word), status
