"""The text of `gpucommons who`: pure functions over a Snapshot.

Names come from users and may contain any character: one that is not printable is escaped.
"""

from collections.abc import Iterable, Iterator, Sequence

from gpucommons.base.printable import Printable, printable, printable_lines
from gpucommons.faces.documents.who import EVERYTHING, BilledProcess, WhoFilter, chosen_processes
from gpucommons.model.gpu import Gpu
from gpucommons.model.ownership import (
    SENTENCES,
    Attribution,
    Basis,
    GpuAccount,
    Owner,
    Portion,
    ProcessShare,
    Unattributed,
)
from gpucommons.model.process_identity import PidScope
from gpucommons.model.snapshot import Snapshot
from gpucommons.rules.identities import qualified_name

_NONE = "-"
_SHORT_ID = 12
_MAX_NAME = 48
_HEADINGS = ("MEMORY", "SM", "POWER", "PID", "SLOT", "PROCESS", "USER", "OWNER", "CONTAINER", "JOB")
# The first columns are numbers, aligned to the right.
_NUMBERS = 4
# These columns are shown even if empty.
_ALWAYS = ("MEMORY", "SM", "POWER", "PID", "PROCESS")
_LEGEND = "~: a share of what the driver measured for the GPU. Without ~: measured for the process."


def render(snapshot: Snapshot, chosen: WhoFilter) -> Printable:
    attribution, gpus = _known(snapshot)
    if attribution is None:
        return printable_lines([no_gpu_readings(snapshot)])
    processes = chosen_processes(snapshot, chosen)
    lines: list[str] = []
    for account in attribution.accounts:
        if chosen.gpu not in (None, account.gpu_uuid):
            continue
        rows = [each for each in processes if each.share.place.gpu_uuid == account.gpu_uuid]
        rest = [row for row in attribution.unattributed if row.gpu_uuid == account.gpu_uuid]
        lines += [_gpu_line(account, gpus.get(account.gpu_uuid)), *_process_lines(rows)]
        lines += [] if chosen.user else _rest_lines(rest)
        lines.append("")
    if any(_is_share(each.share) for each in processes):
        lines.append(_LEGEND)
    if attribution.view.scope is not PidScope.HOST:
        lines.append(attribution.view.sentence)
    return printable_lines(lines if lines[-1:] != [""] else lines[:-1])


def explain(snapshot: Snapshot, pid: int) -> Printable | None:
    """Each step of one process's attribution, for every GPU it is on; None if it is on no GPU."""
    lines: list[str] = []
    for each in chosen_processes(snapshot, EVERYTHING):
        row = each.share
        if row.pid != pid:
            continue
        steps = [f"  {number}. {step}" for number, step in enumerate(row.steps, start=1)]
        verdict = f"owner: {_owner(row.owner)}" if row.owner else f"no owner: {row.reason}"
        use = ", ".join(
            f"{name} {_amount(part, unit)} ({part.basis})"
            for name, part, unit in (("memory", row.memory, "B"), ("SM", row.sm, "%"), ("power", row.power, "W"))
            if part is not None
        )
        lines += [""] if lines else []
        lines += [f"pid {pid} on {_place(each)}", *steps, f"  {verdict}", f"  {use or 'no readings'}"]
    return printable_lines(lines) if lines else None


def _known(snapshot: Snapshot) -> tuple[Attribution | None, dict[str, Gpu]]:
    gpus = snapshot.readings.gpus.gpus if snapshot.readings.gpus else ()
    return snapshot.readings.attribution, {gpu.identity.uuid: gpu for gpu in gpus}


def no_gpu_readings(snapshot: Snapshot) -> str:
    state = snapshot.sources.get("nvml")
    why = "; ".join(filter(None, (state.detail, state.remedy))) if state else "GPUs are not read on this machine"
    return f"no GPU readings: {why}"


def _gpu_line(account: GpuAccount, gpu: Gpu | None) -> str:
    parts = [f"GPU {account.gpu_index}", gpu.identity.name if gpu else account.gpu_uuid]
    total = gpu.readings.memory_total_bytes if gpu else None
    if account.memory_used_bytes is not None:
        of = f" of {_bytes(total)}" if total is not None else ""
        parts.append(f"{_bytes(account.memory_used_bytes)}{of} used")
    if account.sm_millionths is not None:
        parts.append(f"SM {_percent(account.sm_millionths)}")
    if account.power_milliwatts is not None:
        parts.append(_watts(account.power_milliwatts))
    return "  ".join(parts)


def _process_lines(rows: Sequence[BilledProcess]) -> Iterator[str]:
    if not rows:
        yield "  no process"
        return
    cells = [_HEADINGS, *(tuple(_cells(row)) for row in rows)]
    filled = [any(row[i] != _NONE for row in cells[1:]) for i in range(len(_HEADINGS))]
    shown = [i for i, heading in enumerate(_HEADINGS) if filled[i] or heading in _ALWAYS]
    widths = {i: max(len(row[i]) for row in cells) for i in shown}
    for row in cells:
        aligned = (row[i].rjust(widths[i]) if i < _NUMBERS else row[i].ljust(widths[i]) for i in shown)
        yield ("  " + "  ".join(aligned)).rstrip()


def _cells(each: BilledProcess) -> Iterator[str]:
    row, found = each.share, each.share.workload
    yield _amount(row.memory, "B")
    yield _amount(row.sm, "%")
    yield _amount(row.power, "W")
    yield str(row.pid)
    yield _NONE if row.place.gpu_instance_id is None else each.slot or _NONE
    yield _name(found.process_name)
    yield _name(each.account)
    yield _owner(row.owner) if row.owner else f"({row.reason})"
    yield _name(found.container_name or (found.container_id or "")[:_SHORT_ID])
    yield _name(found.job)


def _rest_lines(rows: Iterable[Unattributed]) -> Iterator[str]:
    rows = list(rows)
    if not rows:
        return
    yield "  unattributed"
    cells = [
        (
            _NONE if row.memory_bytes is None else _bytes(row.memory_bytes),
            _NONE if row.sm_millionths is None else _percent(row.sm_millionths),
            _NONE if row.power_milliwatts is None else _watts(row.power_milliwatts),
            f"{row.reason}: {SENTENCES[row.reason]}",
        )
        for row in rows
    ]
    widths = [max(len(row[i]) for row in cells) for i in range(3)]
    for row in cells:
        numbers = "  ".join(cell.rjust(width) for cell, width in zip(row[:3], widths, strict=True))
        yield f"  {numbers}  {row[3]}"


def _is_share(row: ProcessShare) -> bool:
    return any(part is not None and part.basis is Basis.APPORTIONED for part in (row.memory, row.sm, row.power))


def _amount(part: Portion | None, unit: str) -> str:
    if part is None:
        return _NONE
    text = {"B": _bytes, "%": _percent, "W": _watts}[unit](part.amount)
    return f"~{text}" if part.basis is Basis.APPORTIONED else text


def _bytes(amount: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if amount >= unit:
            return f"{amount / unit:.1f} {name}"
    return f"{amount} B"


def _percent(millionths: int) -> str:
    return f"{millionths / 10_000:.0f} %"


def _watts(milliwatts: int) -> str:
    return f"{milliwatts / 1000:.0f} W"


def _owner(owner: Owner) -> str:
    return f"{owner.kind} {printable(qualified_name(owner.namespace, owner.name), _MAX_NAME)}"


def _name(text: str | None) -> str:
    return printable(text, _MAX_NAME) if text else _NONE


def _place(each: BilledProcess) -> str:
    place = each.share.place
    if place.gpu_instance_id is None:
        return f"GPU {place.gpu_index}"
    return f"slot {each.slot}" if each.slot else f"GPU {place.gpu_index}, GPU instance {place.gpu_instance_id}"
