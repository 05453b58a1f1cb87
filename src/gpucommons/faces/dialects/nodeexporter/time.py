"""node_time_*: the time of the snapshot, the time zone, and the kernel's clock sources; node_timex_*: how the clock is
kept."""

from collections.abc import Callable, Iterator

from gpucommons.faces.exposition.families import Family, Metric, counter, gauge
from gpucommons.model.host import Clock, ClockDiscipline
from gpucommons.model.snapshot import Snapshot

_MICRO, _NANO = 1_000_000, 1_000_000_000
# The kernel's unit of a frequency: parts per million, with 16 bits of fraction.
_FREQUENCY = 1_000_000.0 * 65536.0

SECONDS = gauge("node_time_seconds", "Unix time of the snapshot.")
ZONE_OFFSET = gauge("node_time_zone_offset_seconds", "Offset of local time from UTC in seconds.", "time_zone")
CLOCKSOURCE_AVAILABLE = gauge(
    "node_time_clocksource_available_info",
    "Clock source that is available to the kernel; always 1.",
    "device",
    "clocksource",
)
CLOCKSOURCE_CURRENT = gauge(
    "node_time_clocksource_current_info", "Clock source that the kernel uses; always 1.", "device", "clocksource"
)


def _timex(name: str, help: str) -> Metric:
    return (counter if name.endswith("_total") else gauge)(f"node_timex_{name}", help)


def _fraction(state: ClockDiscipline) -> int:
    return _NANO if state.in_nanoseconds else _MICRO


TIMEX: tuple[tuple[Metric, Callable[[ClockDiscipline], float]], ...] = (
    (
        _timex("sync_status", "State of the clock: 1 if it is synchronised to a reliable server, else 0."),
        lambda state: int(state.synchronised),
    ),
    (
        _timex("offset_seconds", "Offset of the clock from the reference clock in seconds."),
        lambda state: state.offset / _fraction(state),
    ),
    (
        _timex("frequency_adjustment_ratio", "Ratio by which the frequency of the clock is adjusted."),
        lambda state: 1 + state.frequency / _FREQUENCY,
    ),
    (_timex("maxerror_seconds", "Maximum error of the clock in seconds."), lambda state: state.max_error_us / _MICRO),
    (
        _timex("estimated_error_seconds", "Estimated error of the clock in seconds."),
        lambda state: state.estimated_error_us / _MICRO,
    ),
    (_timex("status", "Status bits of the clock."), lambda state: state.status),
    (_timex("loop_time_constant", "Time constant of the phase-locked loop."), lambda state: state.time_constant),
    (_timex("tick_seconds", "Seconds between two ticks of the clock."), lambda state: state.tick_us / _MICRO),
    (
        _timex("pps_frequency_hertz", "Frequency of the pulse-per-second signal."),
        lambda state: state.pps_frequency / _FREQUENCY,
    ),
    (
        _timex("pps_jitter_seconds", "Jitter of the pulse-per-second signal in seconds."),
        lambda state: state.pps_jitter / _fraction(state),
    ),
    (_timex("pps_shift_seconds", "Interval of the pulse-per-second signal."), lambda state: state.pps_shift),
    (
        _timex("pps_stability_hertz", "Stability of the pulse-per-second signal."),
        lambda state: state.pps_stability / _FREQUENCY,
    ),
    (
        _timex("pps_jitter_total", "Pulses whose jitter exceeded the limit."),
        lambda state: state.pps_jitter_exceeded,
    ),
    (_timex("pps_calibration_total", "Calibration intervals of the pulse."), lambda state: state.pps_calibrations),
    (_timex("pps_error_total", "Calibration errors of the pulse."), lambda state: state.pps_errors),
    (
        _timex("pps_stability_exceeded_total", "Calibrations whose stability exceeded the limit."),
        lambda state: state.pps_stability_exceeded,
    ),
    (_timex("tai_offset_seconds", "Offset of atomic time (TAI) from UTC."), lambda state: state.tai_offset_s),
)

CATALOGUE = (
    SECONDS,
    ZONE_OFFSET,
    CLOCKSOURCE_AVAILABLE,
    CLOCKSOURCE_CURRENT,
    *(metric for metric, _ in TIMEX),
)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    kernel = snapshot.readings.kernel
    if kernel is None:
        return
    if kernel.clock is not None:
        yield from _clock(kernel.clock, snapshot.wall_s)
    if kernel.clock_discipline is not None:
        for metric, value in TIMEX:
            yield metric.value(value(kernel.clock_discipline))


def _clock(clock: Clock, wall_s: float) -> Iterator[Family]:
    numbered = [(str(number), source) for number, source in enumerate(clock.sources)]
    yield SECONDS.value(wall_s)
    yield ZONE_OFFSET.value(clock.zone_offset_s, clock.zone)
    yield CLOCKSOURCE_AVAILABLE.of(((number, name), 1) for number, source in numbered for name in source.available)
    yield CLOCKSOURCE_CURRENT.of(((number, source.current), 1) for number, source in numbered)
