"""Into how many virtual GPUs each GPU is split, as its admin says, and whether that could be read."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class AllocationRatios:
    """One ratio for every GPU, ratios by GPU index, or both: then the index counts."""

    everywhere: float | None = None
    by_gpu_index: Mapping[int, float] = field(default_factory=dict)

    def of(self, gpu_index: int) -> float | None:
        return self.by_gpu_index.get(gpu_index, self.everywhere)


@dataclass(frozen=True, slots=True)
class AllocationRatioReading:
    """The last good ratios, None if there never were any. `problem` is one line, empty when all is well."""

    ratios: AllocationRatios | None
    problem: str = ""
