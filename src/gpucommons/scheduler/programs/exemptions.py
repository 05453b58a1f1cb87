"""Which programs are left alone, and which are paused because their GPU is leased to another user. Pure.

Each has its reason, in a sentence for `status`.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from gpucommons.base.text import printable
from gpucommons.model.leases import TrespassReport
from gpucommons.model.ownership import Reason
from gpucommons.model.process_identity import ProcessKey
from gpucommons.rules.placement import says_no
from gpucommons.scheduler.programs.jobs import GpuUser, Program, group
from gpucommons.scheduler.programs.matching import ProgramRule, exempting_rule

# Which programs are left alone, and why, in a sentence for `status`. Pure.
#
# A process is left alone on its own account where pausing it would be wrong or impossible whatever its job is: the rest
# of the job still takes part. All other reasons hold for the whole program, because its processes are paused together.
# One process that the pauser could not pause does not free the others of its program, or an owner would gain by adding
# such a process to each. On several GPUs it does: the processes of such a job wait for each other on the GPU (NCCL).
#
# What can be known of MPS: NVML lists its clients as `mps`, and the server among the compute processes under the name
# nvidia-cuda-mps-server, which the kernel cuts to nvidia-cuda-mps. A driver that does not list MPS clients shows them
# as plain compute processes; they are then left alone after the pauser was refused (801).

SHARE_LABEL: Final = "gpucommons.share"
_LONGEST_REASON: Final = 120
# As the kernel shows them: names of processes are cut to 15 characters.
_MPS_SERVER: Final = "nvidia-cuda-mps"
_DISPLAY_SERVERS: Final = frozenset(
    {
        "X",
        "Xorg",
        "Xorg.bin",
        "Xwayland",
        "cinnamon",
        "cosmic-comp",
        "gamescope",
        "gnome-shell",
        "hyprland",
        "Hyprland",
        "kwin_wayland",
        "kwin_x11",
        "labwc",
        "mutter",
        "niri",
        "plasmashell",
        "river",
        "sway",
        "wayfire",
        "weston",
    }
)
_UNSEEN: Final[Mapping[Reason, str]] = {
    Reason.PID_NAMESPACE: "it runs in another pid namespace, where the agent cannot see it; "
    "run the agent in the host's pid namespace",
    Reason.PROCESS_UNREADABLE: "the agent may not read it; run the agent as root or as the program's user",
}


class ShareScope(StrEnum):
    """The setting `share_programs`: whose programs take turns."""

    OFF = "off"
    OWN = "own"
    ALL = "all"


class Exempt(StrEnum):
    """Why a program is left alone, in one word for metrics."""

    OFF = "off"
    AGENT = "agent"
    UNSEEN = "unseen"
    DISPLAY = "display"
    MPS = "mps"
    NVSHARE = "nvshare"
    OWNER_UNKNOWN = "owner_unknown"
    OTHER_USER = "other_user"
    LABEL = "label"
    RULE = "rule"
    PAUSER = "pauser"
    REFUSED = "refused"
    TRESPASSER = "trespasser"


class Refusal(NamedTuple):
    """The pauser cannot pause a process. `until_s`, of the monotonic clock, is when it is tried again; None: never."""

    reason: str
    until_s: float | None = None


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What decides besides the programs themselves. `agent_pids` are the agent and its helpers, such as the pauser.

    `obstacle` is why no program at all can be paused now; empty where they can. `mps_devices` are those with leases
    under MPS, on which no program is paused.
    """

    scope: ShareScope
    agent_uid: int
    agent_pids: AbstractSet[int] = frozenset()
    nvshare_pids: AbstractSet[int] = frozenset()
    refused: Mapping[ProcessKey, Refusal] = field(default_factory=dict)
    rules: Sequence[ProgramRule] = ()
    obstacle: str = ""
    mps_devices: AbstractSet[str] = frozenset()


class _Verdict(NamedTuple):
    why: Exempt
    sentence: str


@dataclass(frozen=True, slots=True)
class Exemption:
    """A program, or some processes of one, that are left alone. `sentence` is one printable line."""

    program: Program
    why: Exempt
    sentence: str


class Participation(NamedTuple):
    """Every process is in exactly one program, of one side or the other."""

    programs: tuple[Program, ...]
    exempt: tuple[Exemption, ...]


def divide(processes: Iterable[GpuUser], around: Circumstances, now_s: float) -> Participation:
    """The programs that take part, and those that are left alone."""
    left: list[GpuUser] = []
    alone: dict[_Verdict, list[GpuUser]] = {}
    for process in processes:
        verdict = _of_process(process, around)
        (left if verdict is None else alone.setdefault(verdict, [])).append(process)
    exempt = [Exemption(program, *verdict) for verdict, several in alone.items() for program in group(several)]
    taking_part = []
    for program in group(left):
        verdict = _of_program(program, around)
        if verdict is not None:
            exempt.append(Exemption(program, *verdict))
            continue
        for part, refusal in _by_refusal(program, around.refused, now_s):
            if refusal is None:
                taking_part.append(part)
            else:
                exempt.append(Exemption(part, *refusal))
    exempt.sort(key=lambda exemption: (exemption.program.key, exemption.why))
    return Participation(tuple(taking_part), tuple(exempt))


def _of_process(process: GpuUser, around: Circumstances) -> _Verdict | None:
    if around.scope is ShareScope.OFF:
        return _Verdict(Exempt.OFF, 'sharing of programs is off (scheduler.share_programs = "off")')
    if process.pid in around.agent_pids:
        return _Verdict(Exempt.AGENT, "it is part of the agent")
    if process.key is None:
        gone = "it ended before it could be identified"
        return _Verdict(Exempt.UNSEEN, _UNSEEN.get(process.reason or Reason.PROCESS_GONE, gone))
    if process.pid in around.nvshare_pids:
        return _Verdict(Exempt.NVSHARE, "it takes turns as a client of nvshare")
    return _of_mps(process) or _of_display(process)


def _of_mps(process: GpuUser) -> _Verdict | None:
    if any("mps" in use.kind.split("+") for use in process.uses):
        return _Verdict(Exempt.MPS, "it is a client of MPS, which the driver cannot pause")
    if process.workload.process_name.startswith(_MPS_SERVER):
        return _Verdict(Exempt.MPS, "it is the server of MPS: pausing it would pause every client of MPS")
    return None


def _of_display(process: GpuUser) -> _Verdict | None:
    if process.workload.process_name in _DISPLAY_SERVERS:
        return _Verdict(Exempt.DISPLAY, f"it is a display server ({process.workload.process_name})")
    if all(use.kind == "graphics" for use in process.uses):
        return _Verdict(Exempt.DISPLAY, "it uses the GPU for graphics only")
    return None


def _of_program(program: Program, around: Circumstances) -> _Verdict | None:
    if around.scope is ShareScope.OWN and program.uid != around.agent_uid:
        return _not_own(program, around.agent_uid)
    if refusing := _refusing_labels(program):
        return _Verdict(Exempt.LABEL, f"its container has the label {SHARE_LABEL}={refusing[0].strip()}")
    rule = exempting_rule(around.rules, program)
    if rule is not None:
        return _Verdict(Exempt.RULE, f"sharing_quotas.{printable(rule.name, _LONGEST_REASON)} has share = false")
    if any(device in around.mps_devices for device in program.devices):
        return _Verdict(Exempt.MPS, "commands run under MPS on its GPU (leases.mps), where no program is paused")
    if around.obstacle:
        return _Verdict(Exempt.PAUSER, f"no program can be paused: {printable(around.obstacle, _LONGEST_REASON)}")
    return None


def is_labelled_alone(program: Program) -> bool:
    """Whether its container or pod says that it takes no part."""
    return bool(_refusing_labels(program))


def _refusing_labels(program: Program) -> list[str]:
    return [process.labels[SHARE_LABEL] for process in program.processes if says_no(process.labels, SHARE_LABEL)]


def _not_own(program: Program, agent_uid: int) -> _Verdict:
    own = f'and share_programs = "own" shares only programs of uid {agent_uid}'
    if program.uid is None:
        several = len({process.workload.uid for process in program.processes}) > 1
        cause = "its processes run as several users" if several else "its user is not known"
        return _Verdict(Exempt.OWNER_UNKNOWN, f"{cause}, {own}")
    return _Verdict(Exempt.OTHER_USER, f"it runs as uid {program.uid}, {own}")


def _by_refusal(
    program: Program, refused: Mapping[ProcessKey, Refusal], now_s: float
) -> Iterator[tuple[Program, _Verdict | None]]:
    """The program, or the part that takes turns and the part that could not be paused."""
    in_force = [
        (process, refused[process.key])
        for process in program.processes
        if process.key is not None and process.key in refused and _is_in_force(refused[process.key], now_s)
    ]
    if not in_force:
        yield program, None
        return
    # The one that lasts longest.
    process, refusal = max(in_force, key=lambda row: math.inf if row[1].until_s is None else row[1].until_s)
    again = "" if refusal.until_s is None else f"; it is tried again in {refusal.until_s - now_s:.0f} s"
    reason = printable(refusal.reason, _LONGEST_REASON)
    verdict = _Verdict(Exempt.REFUSED, f"pid {process.pid} cannot be paused: {reason}{again}")
    alone = tuple(process for process, _ in in_force)
    rest = tuple(process for process in program.processes if process not in alone)
    if not rest or len(program.devices) > 1:
        yield program, verdict
        return
    yield program._replace(processes=rest), None
    yield program._replace(processes=alone), verdict


def _is_in_force(refusal: Refusal, now_s: float) -> bool:
    return refusal.until_s is None or refusal.until_s > now_s


# Processes on a GPU that is leased to another user: which of them are paused, and why the others are not. Pure.
#
# Only the processes on the leased GPU are paused. Other processes of the same job go on.


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
    division = divide(rest, around, now_s)
    for exemption in division.exempt:
        spared |= dict.fromkeys(exemption.program.process_keys, exemption.sentence)
    pause = {
        process.key: process.uses[0].device
        for program in division.programs
        for process in program.processes
        if process.key is not None
    }
    return TrespassVerdicts(pause, spared)
