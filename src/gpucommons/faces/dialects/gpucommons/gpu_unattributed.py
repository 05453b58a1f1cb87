"""gpucommons_gpu_unattributed_*: the use of each GPU that has no known owner, by reason."""

from collections.abc import Callable, Iterator

from gpucommons.faces.exposition.families import Family, Metric, gauge
from gpucommons.model.ownership import Unattributed
from gpucommons.model.snapshot import Snapshot


def _gauge(what: str, help: str) -> Metric:
    return gauge(f"gpucommons_gpu_unattributed_{what}", help, "gpu", "uuid", "reason")


_VALUES: tuple[tuple[Metric, Callable[[Unattributed], int | None], int], ...] = (
    (
        _gauge("bytes", "Used GPU memory without an owner, by reason; owners' memory plus this is the used memory."),
        lambda row: row.memory_bytes,
        1,
    ),
    (
        _gauge("sm_ratio", "SM time of a GPU without an owner, by reason; owners' time plus this is the GPU's."),
        lambda row: row.sm_millionths,
        1_000_000,
    ),
    (
        _gauge("power_watts", "Power of a GPU without an owner, by reason; owners' power plus this is the GPU's."),
        lambda row: row.power_milliwatts,
        1000,
    ),
)

CATALOGUE = tuple(metric for metric, _, _ in _VALUES)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    attribution = snapshot.readings.attribution
    if attribution is None:
        return
    for metric, amount, unit in _VALUES:
        yield metric.of(
            ((str(row.gpu_index), row.gpu_uuid, row.reason), value / unit)
            for row in attribution.unattributed
            if (value := amount(row)) is not None
        )
