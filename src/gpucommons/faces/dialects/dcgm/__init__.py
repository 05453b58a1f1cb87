"""DCGM_FI_* and DCGM_EXP_*: the names of dcgm-exporter, without DCGM.

DCGM_FI_* is in fields.py: which reading fills which field. DCGM_EXP_* is in windows.py (counts in a sliding window) and
status.py (health, links between GPUs).
labels.py decides which series a GPU has; it also computes a pod's use of a shared GPU. collectors.py is what an
operator chose of all this.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from gpucommons.faces.dialects.dcgm import fields, status, windows
from gpucommons.faces.dialects.dcgm.collectors import Shape
from gpucommons.faces.dialects.dcgm.fields import (
    BOARD,
    FB_USED,
    GPU_UTIL,
    PARTITIONED,
    XID_ERRORS,
    Value,
    last_xid,
    parts_of,
)
from gpucommons.faces.dialects.dcgm.labels import DcgmOptions, Labeller, PodUse, pod_uses
from gpucommons.faces.dialects.dialect import Dialect
from gpucommons.faces.exposition.families import Family, LabelValues, Metric, Point
from gpucommons.model.snapshot import Snapshot

PORT = 9400
CATALOGUE = (*fields.CATALOGUE, *windows.CATALOGUE, *status.CATALOGUE)

T = TypeVar("T")


Labelled = list[tuple[LabelValues, T]]
# Fields that also have a value for each pod, if pods share a GPU and have a series each.
_OF_PODS: tuple[tuple[Metric, Callable[[PodUse], Value]], ...] = (
    (GPU_UTIL, lambda use: use.sm_percent),
    (FB_USED, lambda use: use.memory_mebibytes),
)


def _points(holders: Iterable[tuple[LabelValues, T]], read: Callable[[T], Value]) -> Iterator[Point]:
    for labels, holder in holders:
        value = read(holder)
        if value is not None:
            yield labels, value


def _collect(snapshot: Snapshot, options: DcgmOptions) -> Iterator[Family]:
    reading = snapshot.readings.gpus
    if reading is None:
        return
    labeller = Labeller(snapshot, options)
    present, lost = list(reading.present_gpus()), [gpu for gpu in reading.gpus if not gpu.up]
    boards = [(labels, gpu) for gpu in present for labels in labeller.of(gpu)]
    lost_boards = [(labels, gpu) for gpu in lost for labels in labeller.of(gpu)]
    pods = list(pod_uses(present, snapshot.readings.attribution, labeller)) if labeller.per_pod else []
    whole = labeller.without_pods if labeller.per_pod else labeller.of
    yield from _families(BOARD, boards, [(labels, gpu) for gpu in present for labels in whole(gpu)], pods)
    # Lost GPUs as well: the XID explains the loss.
    yield XID_ERRORS.of(_points((*boards, *lost_boards), last_xid))
    parts = [part for gpu in present for part in parts_of(gpu)]
    yield from _families(
        PARTITIONED,
        [(labels, part) for part in parts for labels in labeller.of(part.gpu, part.instance)],
        [(labels, part) for part in parts for labels in whole(part.gpu, part.instance)],
        pods,
    )
    yield from windows.collect(boards, lost_boards, snapshot.wall_s, options)
    yield from status.collect(boards, reading, snapshot.wall_s)


def _families(
    table: Iterable[tuple[Metric, Callable[[T], Value]]],
    holders: "Labelled[T]",
    whole: "Labelled[T]",
    pods: "Labelled[PodUse]",
) -> Iterator[Family]:
    """`whole` has the series of `holders` without pods: in some metrics each pod has its own value."""
    for metric, read in table:
        of_pod = next((of_pod for pod_metric, of_pod in _OF_PODS if pod_metric is metric), None)
        if of_pod is None:
            yield metric.of(_points(holders, read))
        else:
            yield metric.of((*_points(whole, read), *_points(pods, of_pod)))


def dcgm_dialect(options: DcgmOptions | None = None, shape: Shape | None = None) -> Dialect:
    """With a `shape`, names, types and labels are those of the operator's list, chosen from the catalogue."""
    chosen, form = options or DcgmOptions(), shape or Shape()
    return Dialect(
        name="dcgm",
        port=PORT,
        summary="GPUs in the names of dcgm-exporter, without DCGM",
        catalogue=CATALOGUE,
        collect=lambda snapshot: form.apply(_collect(snapshot, chosen), snapshot),
    )


DCGM = dcgm_dialect()
