"""What kinds of programs do to a simulated GPU: matrix products by a formula, real programs as recorded on an H200.

A model gives, for the kinds that run at one moment: the progress of each over that alone, the activity of the device
(SM, tensor, DRAM, busy), and the share of time that the driver would report for each process.
"""

import json
import operator
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from gpucommons.model.gpu import DeviceActivity
from gpucommons.simulation.lab_jobs import MATRIX_LOADS, overbooking, speeds

Kind = int | str
Shares = tuple[float, ...]

# The rows of a recorded trace are this far apart.
ROW_S: Final = 0.1


class GpuModel(Protocol):
    # No longer than this is one look at the activity of the device valid.
    step_s: float

    def progress(self, kinds: Sequence[Kind]) -> Shares: ...
    def activity(self, kinds: Sequence[Kind], now_s: float) -> DeviceActivity: ...
    def use(self, kinds: Sequence[Kind]) -> Shares: ...


class MatrixModel:
    """Loops of matrix products of n x n. `efficiency` is what is left of dense programs that run together."""

    step_s = float("inf")

    def __init__(self, efficiency: float) -> None:
        self._efficiency = efficiency

    def progress(self, kinds: Sequence[Kind]) -> Shares:
        return speeds([MATRIX_LOADS[int(kind)] for kind in kinds], self._efficiency)

    def activity(self, kinds: Sequence[Kind], now_s: float) -> DeviceActivity:
        loads = [MATRIX_LOADS[int(kind)] for kind in kinds]
        rows = [
            [part * value for value in load.activity.work]
            for load, part in zip(loads, self.progress(kinds), strict=True)
        ]
        sm, tensor, dram = (sum(values) for values in zip(*rows, strict=True)) if rows else (0.0, 0.0, 0.0)
        return DeviceActivity(sm, tensor, dram, min(1.0, sum(load.kernels for load in loads)))

    def use(self, kinds: Sequence[Kind]) -> Shares:
        loads = [MATRIX_LOADS[int(kind)] for kind in kinds]
        return tuple(load.kernels / overbooking(loads) for load in loads)


class RealModel:
    """Real programs: recorded sets as they were, other sets by what their parts do."""

    step_s = ROW_S
    # A program that synchronises after each kernel loses its place in the driver's time-slicing at every gap.
    _WEIGHTS: Final = {"loop": 0.15}
    _EFFICIENCY: Final = {"loop": 0.75}

    def __init__(self) -> None:
        recorded = json.loads(Path(__file__).with_name("real_shapes.json").read_text())
        self._alone = recorded["alone"]
        self._together = {tuple(text.split("+")): row for text, row in recorded["together"].items()}
        self._sets: dict[tuple[str, ...], _Set] = {}
        self._together |= {tuple(reversed(kinds)): _reversed(row) for kinds, row in self._together.items()}

    def progress(self, kinds: Sequence[Kind]) -> Shares:
        return self._set(tuple(map(str, kinds))).progress

    def _set(self, names: tuple[str, ...]) -> "_Set":
        if names not in self._sets:
            self._sets[names] = self._recorded(names) if names in self._together else self._estimated(names)
        return self._sets[names]

    def _recorded(self, names: tuple[str, ...]) -> "_Set":
        row = self._together[names]
        # In a few seconds the samples of equal programs differ by chance.
        by_name = {name: [use for one, use in zip(names, row["use"], strict=True) if one == name] for name in names}
        used = [sum(by_name[name]) / len(by_name[name]) for name in names]
        return _Set(tuple(row["progress"]), _scaled(used), [_activity(values) for values in row["trace"]])

    def _estimated(self, names: tuple[str, ...]) -> "_Set":
        progress = (1.0,) if len(names) == 1 else self._shares(names)
        used = [part * self._alone[name]["use"] for name, part in zip(names, progress, strict=True)]
        traces = [list(map(_activity, self._alone[name]["trace"])) for name in names]
        rows = []
        for number in range(min(map(len, traces), default=0)):
            columns = zip(*((*trace[number].work, trace[number].busy or 0.0) for trace in traces), strict=True)
            values = [sum(map(operator.mul, progress, column)) for column in columns]
            rows.append(DeviceActivity(*(min(1.0, value) for value in values)))
        busy = min(1.0, sum(self._alone[name]["use"] for name in names))
        # A device that several programs could fill is never idle.
        used = [value * busy / sum(used) for value in used]
        return _Set(progress, _scaled(used), rows or [_NOTHING])

    def _shares(self, names: tuple[str, ...]) -> Shares:
        heavy = [name for name in names if self._alone[name]["use"] >= 0.5]
        left = 1.0 - sum(self._alone[name]["use"] for name in names if name not in heavy)
        weights = {name: self._WEIGHTS.get(name, 1.0) if set(heavy) != {name} else 1.0 for name in heavy}
        total = sum(weights[name] for name in heavy)
        lost = min((self._EFFICIENCY.get(name, 0.97) for name in heavy), default=1.0) if len(heavy) > 1 else 1.0
        return tuple(max(0.05, lost * left * weights[name] / total) if name in heavy else 1.0 for name in names)

    def activity(self, kinds: Sequence[Kind], now_s: float) -> DeviceActivity:
        trace = self._set(tuple(map(str, kinds))).trace
        return trace[int(now_s / ROW_S) % len(trace)]

    def use(self, kinds: Sequence[Kind]) -> Shares:
        return self._set(tuple(map(str, kinds))).use


_NOTHING: Final = DeviceActivity(0.0, 0.0, 0.0, 0.0)


class _Set(NamedTuple):
    """A set of programs that run together: progress and use of each, and the trace of the device."""

    progress: Shares
    use: Shares
    trace: list[DeviceActivity]


def _scaled(used: Sequence[float]) -> Shares:
    """Attribution scales what the driver reports to the busy time of the device."""
    return tuple(value / max(1.0, sum(used)) for value in used)


def _activity(row: Sequence[float]) -> DeviceActivity:
    busy, sm, tensor, dram = row
    return DeviceActivity(sm / 100, tensor / 100, dram / 100, busy / 100)


def _reversed(row: dict[str, list[float]]) -> dict[str, list[float]]:
    return {name: values if name == "trace" else list(reversed(values)) for name, values in row.items()}
