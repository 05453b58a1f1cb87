"""DCGM_EXP_*: the counts in a sliding window that dcgm-exporter adds to DCGM. Gauges, since they also decrease.

An empty window has one series with the value 0 and without the label of an XID or a clock event.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from gpucommons.faces.dialects.dcgm.labels import LABELS, OPTIONAL, DcgmOptions
from gpucommons.faces.exposition.families import Family, LabelValues, Metric, Point, gauge
from gpucommons.model.gpu import Gpu

# dcgm-exporter's names of the bits of the throttle mask.
_CLOCK_EVENTS: tuple[tuple[int, str], ...] = (
    (0x001, "gpu_idle"),
    (0x002, "clocks_setting"),
    (0x004, "power_cap"),
    (0x008, "hw_slowdown"),
    (0x010, "sync_boost"),
    (0x020, "sw_thermal"),
    (0x040, "hw_thermal"),
    (0x080, "hw_power_brake"),
    (0x100, "display_clocks"),
)


def _window(name: str, help: str, what: str) -> Metric:
    labels = (*LABELS, "window_size_in_ms", what)
    return gauge(f"DCGM_EXP_{name}", help, *labels, optional=(*OPTIONAL, what))


XIDS = _window("XID_ERRORS_COUNT", "XID errors in the window, by code.", "xid")
CLOCK_EVENTS = _window(
    "CLOCK_EVENTS_COUNT",
    "Samples in the window, one every 30 s, in which the clocks were reduced, by reason.",
    "clock_event",
)
CATALOGUE = (XIDS, CLOCK_EVENTS)


class _Window(NamedTuple):
    """A time later than now is from before the clock was set back: it is outside the window."""

    now_wall_s: float
    length_ms: int

    def has(self, wall_s: float) -> bool:
        return self.now_wall_s - self.length_ms / 1000 <= wall_s <= self.now_wall_s


Labelled = Iterable[tuple[LabelValues, Gpu]]


def collect(gpus: Labelled, lost: Labelled, now_wall_s: float, options: DcgmOptions) -> Iterator[Family]:
    """XIDs are counted for lost GPUs as well: they explain the loss."""
    xid_ms, clock_ms = options.xid_window_ms, options.clock_events_window_ms
    present = list(gpus)
    yield XIDS.of(_points([*present, *lost], xid_ms, lambda gpu: _xids(gpu, _Window(now_wall_s, xid_ms))))
    yield CLOCK_EVENTS.of(_points(present, clock_ms, lambda gpu: _clock_events(gpu, _Window(now_wall_s, clock_ms))))


def _points(gpus: Labelled, window_ms: int, count: Callable[[Gpu], Counter[str] | None]) -> Iterator[Point]:
    for labels, gpu in gpus:
        counted = count(gpu)
        if counted is None:
            continue
        for what, number in sorted(counted.items()) or [("", 0)]:
            yield (*labels, str(window_ms), what), number


def _xids(gpu: Gpu, window: _Window) -> Counter[str] | None:
    """None if the XIDs of this GPU are not watched."""
    if not gpu.xid.watched:
        return None
    counted: Counter[str] = Counter()
    for (second, code), number in gpu.xid.recent.items():
        if window.has(second):
            counted[str(code)] += number
    return counted


def _clock_events(gpu: Gpu, window: _Window) -> Counter[str] | None:
    """None without a sample in the window."""
    masks = [sample.throttle_mask for sample in gpu.clock_samples if window.has(sample.wall_s)]
    if not masks:
        return None
    return Counter(name for mask in masks for bit, name in _CLOCK_EVENTS if mask & bit)
