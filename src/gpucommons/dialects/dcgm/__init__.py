"""DCGM_FI_* and DCGM_EXP_*: the names of dcgm-exporter, without DCGM.

fields.py says which reading fills which field, labels.py which series a GPU has, pod_use.py what a pod uses of a GPU
that several share, windows.py what is counted in a sliding window.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from gpucommons.dialects.dcgm import fields, windows
from gpucommons.dialects.dcgm.fields import BOARD, FB_USED, GPU_UTIL, PARTITIONED, XID_ERRORS, Value, last_xid, parts_of
from gpucommons.dialects.dcgm.labels import DcgmOptions, Labeller
from gpucommons.dialects.dcgm.pod_use import pod_uses
from gpucommons.dialects.dialect import Dialect
from gpucommons.exposition.families import Family, LabelValues, Point
from gpucommons.model.snapshot import Snapshot

PORT = 9400
CATALOGUE = (*fields.CATALOGUE, *windows.CATALOGUE)

T = TypeVar("T")


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
    parts = [part for gpu in present for part in parts_of(gpu)]
    of_parts = [(labels, part) for part in parts for labels in labeller.of(part.gpu, part.instance)]
    whole_boards, whole_parts, pods = boards, of_parts, []
    if labeller.per_pod:
        whole_boards = [(labels, gpu) for gpu in present for labels in labeller.without_pods(gpu)]
        whole_parts = [(labels, part) for part in parts for labels in labeller.without_pods(part.gpu, part.instance)]
        pods = list(pod_uses(present, snapshot.readings.attribution, labeller))
    for metric, of_board in BOARD:
        if metric is GPU_UTIL:
            of_pods = _points(pods, lambda use: use.sm_percent)
            yield metric.of((*_points(whole_boards, of_board), *of_pods))
        else:
            yield metric.of(_points(boards, of_board))
    # Of the lost too: the code that tells why a GPU is gone must not go with it.
    yield XID_ERRORS.of(_points((*boards, *lost_boards), last_xid))
    for metric, of_part in PARTITIONED:
        if metric is FB_USED:
            of_pods = _points(pods, lambda use: use.memory_mebibytes)
            yield metric.of((*_points(whole_parts, of_part), *of_pods))
        else:
            yield metric.of(_points(of_parts, of_part))
    yield from windows.collect(boards, lost_boards, snapshot.wall_s, options)


def dcgm_dialect(options: DcgmOptions | None = None) -> Dialect:
    chosen = options or DcgmOptions()
    return Dialect(
        name="dcgm",
        port=PORT,
        summary="GPUs in the names of dcgm-exporter, without DCGM",
        catalogue=CATALOGUE,
        collect=lambda snapshot: _collect(snapshot, chosen),
    )


DCGM = dcgm_dialect()
