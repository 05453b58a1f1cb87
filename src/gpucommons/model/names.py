"""How an owner, a pod, an account and a slot are named. Every face takes the names from here. Pure."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from gpucommons.base.text import printable, qualified_name
from gpucommons.model.allocations import Account, AllocationReading
from gpucommons.model.gpu import Gpu
from gpucommons.model.ownership import Owner, Place, ProcessShare
from gpucommons.model.words import NO_POD

_LONGEST_PART: Final = 64


def owner_key(owner: Owner) -> str:
    """The identity of an owner in the API."""
    return f"{owner.kind.value}/{owner.id}"


def process_name(owner: str, command: str, pids: Collection[int]) -> str:
    """The name of a process or program: `alice · train.py (pid 4711)`. Printable, and of bounded length.

    Of several processes it has the first pid, which commands take, and which no other program has.
    """
    more = f" and {len(pids) - 1} more" if len(pids) > 1 else ""
    which = f"pid {min(pids)}{more}" if pids else "pid unknown"
    subject = " · ".join(printable(part, _LONGEST_PART) for part in (owner, command) if part)
    return f"{subject} ({which})"


def nvshare_client_name(pod: str, namespace: str, of_process: str) -> str:
    """The name of a client of nvshare: that of the pod that it claims, or of its process where it claims none."""
    if pod in NO_POD:
        return of_process
    return printable(qualified_name("" if namespace in NO_POD else namespace, pod))


def account_name(account: Account) -> str:
    """The name that is billed: the user; for what has none, the pod, else the owner."""
    return (
        account.user
        or qualified_name(account.namespace, account.pod)
        or qualified_name(account.namespace, account.owner)
    )


def account_names(reading: AllocationReading | None) -> Mapping[str, str]:
    """The name that each workload is billed to, by workload id."""
    return (
        {allocation.workload_id: account_name(allocation.account) for allocation in reading.allocations}
        if reading
        else {}
    )


def billing_name(share: ProcessShare, by_workload: Mapping[str, str]) -> str | None:
    """The name that a process is billed to; None where it has no owner."""
    work, pod = share.workload, share.workload.pod
    pod_name = qualified_name(pod.namespace, pod.name) if pod else ""
    job = f"job/{work.job}" if work.job else ""
    for id in (work.container_id, pod.uid if pod else "", pod_name, job):
        if id and id in by_workload:
            return by_workload[id]
    if share.owner is None:
        return None
    if pod is not None:
        return pod_name or pod.uid
    user = work.user or ("" if work.uid is None else str(work.uid))
    return user or qualified_name(share.owner.namespace, share.owner.name)


def slot_name(gpu_index: int, mig_number: int | None = None) -> str:
    """A whole GPU is `6`. Its first MIG device, in the driver's order, is `6.0`."""
    return str(gpu_index) if mig_number is None else f"{gpu_index}.{mig_number}"


def mig_slot_names(gpu: Gpu) -> Mapping[str, str]:
    """The slot name of each MIG device of one GPU, by UUID."""
    return {mig.uuid: slot_name(gpu.identity.index, number) for number, mig in enumerate(gpu.mig)}


def slots_by_place(gpus: Iterable[Gpu]) -> Mapping[Place, str]:
    """The slot of each GPU and GPU instance. A GPU instance with several MIG devices has no single slot."""
    slots: dict[Place, str] = {}
    for gpu in gpus:
        place = Place(gpu.identity.uuid, gpu.identity.index)
        if not gpu.mig_enabled:
            slots[place] = slot_name(gpu.identity.index)
        devices = Counter(mig.gpu_instance_id for mig in gpu.mig)
        for mig in gpu.mig:
            if devices[mig.gpu_instance_id] == 1:
                slots[place._replace(gpu_instance_id=mig.gpu_instance_id)] = mig_slot_names(gpu)[mig.uuid]
    return slots


def job_of_lease(id: str) -> str:
    """The name under which a lease is billed."""
    return f"lease-{id}"


# The short name of a command, as people know it: `train.py` for `python3 -u /home/alice/train.py --epochs 3`. Pure.

_INTERPRETER: Final = re.compile(r"(?:python|pypy|ruby|perl|julia)[0-9.]*")
# Options of an interpreter that are followed by a value, and those whose value is the program.
_WITH_VALUE: Final = frozenset({"-W", "-X", "-I", "-C", "--project", "--check-hash-based-pycs"})
_INLINE: Final = frozenset({"-c", "-e"})


def short_command(command_line: Sequence[str], process_name: str) -> str:
    """An interpreter's script or module, else the program's file name; without a command line, the process's name.

    A program that writes its own title (`nginx: worker process`) has one argument with spaces: its first word counts.
    """
    if len(command_line) == 1:
        command_line = [word.rstrip(":") for word in command_line[0].split()]
    program = _basename(command_line[0]) if command_line else ""
    if not program:
        return process_name
    if not _INTERPRETER.fullmatch(program):
        return program
    return _script(program, command_line[1:]) or program


def _script(interpreter: str, arguments: Sequence[str]) -> str:
    remaining = iter(arguments)
    for argument in remaining:
        if argument == "-m":
            return next(remaining, "")
        if argument in _INLINE:
            return f"{interpreter} {argument}"
        if argument in _WITH_VALUE:
            next(remaining, None)
        elif not argument.startswith("-"):
            return _basename(argument)
    return ""


def _basename(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
