"""node_hwmon_*: the sensors of the host. Kind and property of a sensor form the name; units become SI units."""

from collections.abc import Iterable, Iterator
from functools import cache

from gpucommons.faces.exposition.families import Family, Metric, counter, gauge, joined
from gpucommons.model.host import Chip, Sensor
from gpucommons.model.snapshot import Snapshot

PREFIX = "node_hwmon_"
_LABELS = ("chip", "sensor")
_MILLI, _MICRO = 1e-3, 1e-6

CHIP_NAMES = gauge(f"{PREFIX}chip_names", "Name of a chip in its driver; always 1.", "chip", "chip_name")
SENSOR_LABEL = gauge(f"{PREFIX}sensor_label", "Label of a sensor in its driver; always 1.", *_LABELS, "label")
BEEP_ENABLED = gauge(f"{PREFIX}beep_enabled", "Beeping of a chip: 1 if enabled, else 0.", *_LABELS)
VRM = gauge(f"{PREFIX}voltage_regulator_version", "Version of a chip's voltage regulator module.", *_LABELS)
UPDATE_INTERVAL = gauge(
    f"{PREFIX}update_interval_seconds", "Interval between two updates of a chip in seconds.", *_LABELS
)


@cache
def metric_of(kind: str, property: str, has_bare: bool = False) -> tuple[Metric, float]:
    """The metric of one property of a kind of sensor, and the factor from the driver's unit to ours.

    `has_bare`: the sensor also has a file without a property, so that its input needs a name of its own.
    """
    if property in ("", "input"):
        name = f"{PREFIX}{kind}_input" if property and has_bare else f"{PREFIX}{kind}"
    else:
        name = f"{PREFIX}{kind}_{property}"
    unit, factor = _unit(kind, property)
    # Two properties may form the same name, and a name has one help.
    words = name.removeprefix(f"{PREFIX}{kind}").replace("_", " ")
    help = f"Value of a sensor of kind {kind}{':' if words else ''}{words}."
    make = counter if kind == "energy" and unit else gauge
    return make(name + unit, help, *_LABELS), factor


def _unit(kind: str, property: str) -> tuple[str, float]:
    """The suffix of the name and the factor. States (fault, alarm, beep) have no unit."""
    if property in ("fault", "alarm"):
        return "", 1
    if property == "beep":
        return "_enabled", 1
    if kind == "power":
        if property == "accuracy":
            return "", _MICRO
        interval = property in ("average_interval", "average_interval_min", "average_interval_max")
        return ("_seconds", _MILLI) if interval else ("_watt", _MICRO)
    if kind == "fan":
        return ("_rpm", 1) if property in ("input", "min", "max", "target") else ("", 1)
    if kind == "temp" and property == "type":
        return "", 1
    return {
        "in": ("_volts", _MILLI),
        "cpu": ("_volts", _MILLI),
        "temp": ("_celsius", _MILLI),
        "curr": ("_amps", _MILLI),
        "energy": ("_joule_total", _MICRO),
        "humidity": ("", _MICRO),
    }.get(kind, ("", 1))


CATALOGUE = (
    CHIP_NAMES,
    SENSOR_LABEL,
    *(metric_of("temp", property)[0] for property in ("input", "max", "min", "crit", "crit_alarm", "alarm", "type")),
    *(metric_of("fan", property)[0] for property in ("input", "min", "alarm")),
    *(metric_of("in", property)[0] for property in ("input", "min", "max")),
    *(metric_of("power", property)[0] for property in ("input", "average", "average_interval", "cap")),
    metric_of("curr", "input")[0],
    metric_of("energy", "input")[0],
    metric_of("humidity", "input")[0],
    metric_of("pwm", "")[0],
    BEEP_ENABLED,
    VRM,
    UPDATE_INTERVAL,
)


def collect(snapshot: Snapshot) -> list[Family]:
    hardware = snapshot.readings.hardware
    return [] if hardware is None else joined(_chips(hardware.chips or ()))


def _chips(chips: Iterable[Chip]) -> Iterator[Family]:
    for chip in chips:
        if chip.name is not None:
            yield CHIP_NAMES.value(1, chip.id, chip.name)
        for sensor in chip.sensors:
            yield from _sensor(chip, sensor)


def _sensor(chip: Chip, sensor: Sensor) -> Iterator[Family]:
    if sensor.label is not None:
        yield SENSOR_LABEL.value(1, chip.id, sensor.name, sensor.label)
    bare = sensor.properties.get("")
    if sensor.kind == "beep_enable":
        yield BEEP_ENABLED.value(int(bare == 1), chip.id, sensor.name)
    elif sensor.kind == "vrm":
        yield VRM.value(bare, chip.id, sensor.name)
    elif sensor.kind == "update_interval":
        yield UPDATE_INTERVAL.value(None if bare is None else bare * _MILLI, chip.id, sensor.name)
    else:
        for property, value in sensor.properties.items():
            if property != "label":
                metric, factor = metric_of(sensor.kind, property, bare is not None)
                yield metric.value(value * factor, chip.id, sensor.name)
