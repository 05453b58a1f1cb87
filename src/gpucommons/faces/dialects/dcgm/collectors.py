"""What an operator chose of the dcgm series: dcgm-exporter's list of counters, and its options for labels. Pure.

The list is a CSV file with a field, its type and its help per line. A field of type `label` becomes a label of all
series. Fields that are not in the list are left out. Lists of dcgm-exporter 1.x have other names for the same fields.
"""

import csv
import re
import string
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from gpucommons.faces.dialects.dcgm.labels import LABELS
from gpucommons.faces.exposition.families import Family, LabelValues, Metric, MetricType
from gpucommons.model.gpu import Gpu, GpuReading
from gpucommons.model.snapshot import Snapshot

DRIVER_VERSION = "DCGM_FI_DRIVER_VERSION"
_LABEL_TYPE = "label"
_TYPES = {"gauge": MetricType.GAUGE, "counter": MetricType.COUNTER}
_NOT_IN_A_LABEL = re.compile(r"[^a-zA-Z0-9_]")
_UUID, _NAMESPACE, _POD = (LABELS.index(name) for name in ("UUID", "namespace", "pod"))
# With DCGM_EXPORTER_USE_OLD_NAMESPACE.
_OLD_LABELS = {"UUID": "uuid", "pod": "pod_name", "namespace": "pod_namespace", "container": "container_name"}
# Names of 1.x that are not DCGM_FI_DEV_ or DCGM_FI_ in lower case.
_OLD_FIELDS = {
    "dcgm_memory_clock": "DCGM_FI_DEV_MEM_CLOCK",
    "dcgm_gpu_utilization": "DCGM_FI_DEV_GPU_UTIL",
    "dcgm_mem_copy_utilization": "DCGM_FI_DEV_MEM_COPY_UTIL",
    "dcgm_enc_utilization": "DCGM_FI_DEV_ENC_UTIL",
    "dcgm_dec_utilization": "DCGM_FI_DEV_DEC_UTIL",
    "dcgm_ecc_sbe_volatile_total": "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
    "dcgm_ecc_dbe_volatile_total": "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
    "dcgm_ecc_sbe_aggregate_total": "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL",
    "dcgm_ecc_dbe_aggregate_total": "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL",
    "dcgm_retired_pages_sbe": "DCGM_FI_DEV_RETIRED_SBE",
    "dcgm_retired_pages_dbe": "DCGM_FI_DEV_RETIRED_DBE",
    "dcgm_retired_pages_pending": "DCGM_FI_DEV_RETIRED_PENDING",
    "dcgm_nvlink_flit_crc_error_count_total": "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
    "dcgm_nvlink_data_crc_error_count_total": "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
}


def _inforom(name: str) -> Callable[[Gpu, GpuReading], str]:
    return lambda gpu, _: dict(gpu.identity.inforom_versions).get(name, "")


LABEL_FIELDS: Mapping[str, Callable[[Gpu, GpuReading], str]] = {
    DRIVER_VERSION: lambda _, reading: reading.driver_version,
    "DCGM_FI_NVML_VERSION": lambda _, reading: reading.nvml_version,
    "DCGM_FI_DEV_NAME": lambda gpu, _: gpu.identity.name,
    "DCGM_FI_DEV_BRAND": lambda gpu, _: gpu.identity.brand or "",
    "DCGM_FI_DEV_SERIAL": lambda gpu, _: gpu.identity.serial or "",
    "DCGM_FI_DEV_UUID": lambda gpu, _: gpu.identity.uuid,
    "DCGM_FI_DEV_MINOR_NUMBER": lambda gpu, _: "" if gpu.identity.minor is None else str(gpu.identity.minor),
    "DCGM_FI_DEV_PCI_BUSID": lambda gpu, _: gpu.identity.pci_bus_id,
    "DCGM_FI_DEV_VBIOS_VERSION": lambda gpu, _: gpu.identity.vbios_version or "",
    "DCGM_FI_DEV_INFOROM_IMAGE_VER": _inforom("image"),
    "DCGM_FI_DEV_OEM_INFOROM_VER": _inforom("oem"),
    "DCGM_FI_DEV_ECC_INFOROM_VER": _inforom("ecc"),
    "DCGM_FI_DEV_POWER_INFOROM_VER": _inforom("power"),
}


class ChosenField(NamedTuple):
    """`name` is the name in the list, which may be that of 1.x."""

    name: str
    type: MetricType
    help: str


class Collectors(NamedTuple):
    """The list: the fields by their present names, and the fields that are labels."""

    fields: Mapping[str, ChosenField] = {}
    labels: tuple[str, ...] = ()


def parse_collectors(text: str, served: Iterable[str]) -> tuple[Collectors, list[str]]:
    """The list, and what is wrong with its other lines. `served` are the names of the fields that exist here."""
    available = frozenset(served)
    fields: dict[str, ChosenField] = {}
    labels: dict[str, None] = {}
    problems: list[str] = []
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            (row,) = csv.reader([line])
        except (csv.Error, ValueError):
            row = []
        if len(row) != 3:
            problems.append(f"line {number}: expected a field, a type and a help, got {line.strip()[:60]!r}")
            continue
        name, kind, help = (part.strip() for part in row)
        present = present_name(name)
        if kind == _LABEL_TYPE:
            if present in LABEL_FIELDS:
                labels[present] = None
            else:
                problems.append(f"line {number}: {name} cannot be a label here")
        elif kind not in _TYPES:
            problems.append(f"line {number}: unknown type {kind!r} of {name}; use gauge, counter or label")
        elif present not in available:
            problems.append(f"line {number}: {name} is not available without DCGM")
        else:
            fields.setdefault(present, ChosenField(name, _TYPES[kind], help))
    return Collectors(fields, tuple(labels)), problems


def present_name(name: str) -> str:
    """dcgm_sm_clock is DCGM_FI_DEV_SM_CLOCK; dcgm_fi_prof_sm_active is DCGM_FI_PROF_SM_ACTIVE."""
    if name.startswith("dcgm_fi_"):
        return name.upper()
    if name.startswith("dcgm_"):
        return _OLD_FIELDS.get(name, f"DCGM_FI_DEV_{name.removeprefix('dcgm_').upper()}")
    return name


class Shape(NamedTuple):
    """How the families of the dialect are changed. Without a list and options they stay as they are."""

    collectors: Collectors | None = None
    old_namespace: bool = False
    pod_labels: bool = False

    def apply(self, families: Iterable[Family], snapshot: Snapshot) -> Iterator[Family]:
        if self == _AS_IT_IS:
            yield from families
            return
        extra = _ExtraLabels(snapshot, self)
        kept = [
            place
            for place, name in enumerate(LABELS)
            if name != DRIVER_VERSION or self.collectors is None or DRIVER_VERSION in self.collectors.labels
        ]
        for family in families:
            metric = family.metric
            chosen = ChosenField(metric.name, metric.type, metric.help)
            if self.collectors is not None:
                selected = self.collectors.fields.get(metric.name)
                if selected is None:
                    continue
                chosen = selected
            shaped = _shape(metric, chosen, tuple(kept), self.old_namespace, extra.names)
            yield shaped.of(
                ((*(labels[place] for place in kept), *labels[len(LABELS) :], *extra.of(labels)), value)
                for labels, value in family.points
            )


_AS_IT_IS = Shape()


@lru_cache(maxsize=512)
def _shape(metric: Metric, chosen: ChosenField, kept: tuple[int, ...], old: bool, extra: tuple[str, ...]) -> Metric:
    renamed = _OLD_LABELS if old else {}
    own = (*(LABELS[place] for place in kept), *metric.labels[len(LABELS) :])
    optional = frozenset((*(renamed.get(name, name) for name in metric.optional), *extra))
    names = (*(renamed.get(name, name) for name in own), *extra)
    return Metric(chosen.name, chosen.type, chosen.help, names, optional & frozenset(names))


class _ExtraLabels:
    """The labels of label fields, by GPU, and those of pods. A pod's label never replaces another one."""

    def __init__(self, snapshot: Snapshot, shape: Shape) -> None:
        reading, pods = snapshot.readings.gpus, snapshot.readings.pods
        fields = () if shape.collectors is None else shape.collectors.labels
        self._fields = tuple(name for name in fields if name != DRIVER_VERSION)
        self._of_gpu: dict[str, LabelValues] = {}
        if reading is not None:
            for gpu in reading.gpus:
                values = tuple(LABEL_FIELDS[name](gpu, reading) for name in self._fields)
                self._of_gpu[gpu.identity.uuid] = values
        self._of_pod: dict[tuple[str, str], dict[str, str]] = {}
        taken = {*LABELS, *_OLD_LABELS.values(), *self._fields}
        if shape.pod_labels and pods is not None:
            for pod in pods.by_uid.values():
                named = {_NOT_IN_A_LABEL.sub("_", key): value for key, value in sorted(pod.labels.items())}
                self._of_pod[pod.namespace, pod.name] = {
                    name: value for name, value in named.items() if name not in taken and name[0] not in string.digits
                }
        self._names = tuple(sorted({name for labels in self._of_pod.values() for name in labels}))
        self._none = ("",) * len(self._names)

    @property
    def names(self) -> tuple[str, ...]:
        return (*self._fields, *self._names)

    def of(self, labels: LabelValues) -> LabelValues:
        of_pod = self._of_pod.get((labels[_NAMESPACE], labels[_POD])) if self._names else None
        of_gpu = self._of_gpu.get(labels[_UUID], ("",) * len(self._fields))
        if of_pod is None:
            return (*of_gpu, *self._none)
        return (*of_gpu, *(of_pod.get(name, "") for name in self._names))
