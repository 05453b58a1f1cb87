"""Processes on a GPU that is leased to another user: which of them are paused, and why the others are not. Pure.

Only the processes on the leased GPU are paused. Other processes of the same job go on.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpucommons.model.process_identity import ProcessKey
from gpucommons.scheduler.programs.exemptions import Circumstances, divide
from gpucommons.scheduler.programs.jobs import GpuUser


@dataclass(frozen=True, slots=True)
class TrespassReport:
    """The leases whose GPUs each process uses without a lease, as of `as_of_s` of the monotonic clock."""

    leases: Mapping[ProcessKey, frozenset[str]] = field(default_factory=dict)
    as_of_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TrespassVerdicts:
    """`pause`: the processes to pause, each with its device. `spared`: the others, each with the reason."""

    pause: Mapping[ProcessKey, str] = field(default_factory=dict)
    spared: Mapping[ProcessKey, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TrespassStanding:
    """The processes that are paused now, and why others are not."""

    paused: frozenset[ProcessKey] = frozenset()
    spared: Mapping[ProcessKey, str] = field(default_factory=dict)


def judge_trespassers(
    processes: Iterable[GpuUser], report: TrespassReport, around: Circumstances, own_only: bool, now_s: float
) -> TrespassVerdicts:
    """`own_only`: the pauser may pause only programs of the agent's own user. Exempt programs are spared."""
    spared: dict[ProcessKey, str] = {}
    rest = []
    for process in processes:
        if process.key is None or process.key not in report.leases:
            continue
        if own_only and process.workload.uid != around.agent_uid:
            spared[process.key] = (
                f"the agent may pause only programs of uid {around.agent_uid}: run it as root, "
                "or set scheduler.pauser_socket to a pauser that runs as root"
            )
        else:
            rest.append(process)
    found = divide(rest, around, now_s)
    for exemption in found.exempt:
        spared |= dict.fromkeys(exemption.program.process_keys, exemption.sentence)
    pause = {
        process.key: process.uses[0].device
        for program in found.programs
        for process in program.processes
        if process.key is not None
    }
    return TrespassVerdicts(pause, spared)
