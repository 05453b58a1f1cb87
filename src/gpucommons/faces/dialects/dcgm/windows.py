"""DCGM_EXP_*: what dcgm-exporter itself counts within a sliding window. Gauges, for a window's count goes down too.

Without anything in the window there is one series of 0, which names no XID and no clock event.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from gpucommons.faces.dialects.dcgm.labels import LABELS, OPTIONAL, DcgmOptions
from gpucommons.faces.exposition.families import Family, LabelValues, Metric, Point, gauge
from gpucommons.model.gpu import Gpu

# By bit of the throttle mask, in dcgm-exporter's words.
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


XIDS = _window("XID_ERRORS_COUNT", "XID errors within the window, by code.", "xid")
CLOCK_EVENTS = _window(
    "CLOCK_EVENTS_COUNT",
    "Samples within the window, one every 30 s, in which something held the clocks down, by what did.",
    "clock_event",
)
CATALOGUE = (XIDS, CLOCK_EVENTS)


class _Window(NamedTuple):
    """What is stamped later than now was stamped before the clock was set back: it has no place in a window."""

    now_wall_s: float
    length_ms: int

    def has(self, wall_s: float) -> bool:
        return self.now_wall_s - self.length_ms / 1000 <= wall_s <= self.now_wall_s


Labelled = Iterable[tuple[LabelValues, Gpu]]


def collect(gpus: Labelled, lost: Labelled, now_wall_s: float, options: DcgmOptions) -> Iterator[Family]:
    """XIDs are told of lost GPUs too: they say why a GPU is gone."""
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
    """None where the XIDs of this GPU are not watched."""
    if not gpu.xid.watched:
        return None
    counted: Counter[str] = Counter()
    for (second, code), number in gpu.xid.recent.items():
        if window.has(second):
            counted[str(code)] += number
    return counted


def _clock_events(gpu: Gpu, window: _Window) -> Counter[str] | None:
    """None where there is no sample in the window."""
    masks = [sample.throttle_mask for sample in gpu.clock_samples if window.has(sample.wall_s)]
    if not masks:
        return None
    return Counter(name for mask in masks for bit, name in _CLOCK_EVENTS if mask & bit)
