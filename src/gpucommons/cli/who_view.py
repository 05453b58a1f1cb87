"""What `gpucommons who` shows, as text and as JSON values: pure functions over a Snapshot.

Names come from users and may hold anything: what is not printable is shown escaped, never sent to a terminal.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gpucommons.base.printable import printable
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

_NONE = "-"
_SHORT_ID = 12
_MOST_NAME = 48
_HEADINGS = ("MEMORY", "SM", "POWER", "PID", "PROCESS", "USER", "OWNER", "CONTAINER", "POD", "JOB")
# The columns of numbers stand at the right edge.
_NUMBERS = 4
_LEGEND = "~ is a share of what the driver measured of the GPU; without it, the driver measured the process."


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Which rows to show. `gpu` is an index or a UUID, `user` a name, a uid or an owner's name."""

    user: str | None = None
    gpu: str | None = None

    def has_gpu(self, uuid: str, index: int) -> bool:
        return self.gpu is None or self.gpu in (str(index), uuid)

    def has(self, row: ProcessShare) -> bool:
        if not self.has_gpu(row.place.gpu_uuid, row.place.gpu_index):
            return False
        names = (row.workload.user, str(row.workload.uid), row.owner.name if row.owner else None)
        return self.user is None or self.user in names


def render(snapshot: Snapshot, wanted: RowFilter) -> str:
    attribution, gpus = _known(snapshot)
    if attribution is None:
        return _nothing(snapshot)
    lines: list[str] = []
    for account in attribution.accounts:
        if not wanted.has_gpu(account.gpu_uuid, account.gpu_index):
            continue
        rows = [row for row in attribution.processes if row.place.gpu_uuid == account.gpu_uuid and wanted.has(row)]
        rest = [row for row in attribution.unattributed if row.gpu_uuid == account.gpu_uuid]
        lines += [_gpu_line(account, gpus.get(account.gpu_uuid)), *_process_lines(rows)]
        lines += [] if wanted.user else _rest_lines(rest)
        lines.append("")
    if any(_is_share(row) for row in attribution.processes):
        lines.append(_LEGEND)
    if attribution.view.scope is not PidScope.HOST:
        lines.append(attribution.view.sentence)
    return "\n".join(lines).strip() + "\n"


def as_rows(snapshot: Snapshot, wanted: RowFilter) -> dict[str, object]:
    """The same as JSON values, in plain units, with nothing cut short."""
    attribution, gpus = _known(snapshot)
    if attribution is None:
        return {"gpus": [], "note": _nothing(snapshot).strip()}
    return {
        "gpus": [
            {
                "index": account.gpu_index,
                "uuid": account.gpu_uuid,
                "name": gpus[account.gpu_uuid].identity.name if account.gpu_uuid in gpus else None,
                "memory_used_bytes": account.memory_used_bytes,
                "sm_ratio": _scaled(account.sm_millionths, 1_000_000),
                "power_watts": _scaled(account.power_milliwatts, 1000),
                "processes": [
                    _row_value(row)
                    for row in attribution.processes
                    if row.place.gpu_uuid == account.gpu_uuid and wanted.has(row)
                ],
                "unattributed": [
                    _rest_value(row)
                    for row in attribution.unattributed
                    if row.gpu_uuid == account.gpu_uuid and not wanted.user
                ],
            }
            for account in attribution.accounts
            if wanted.has_gpu(account.gpu_uuid, account.gpu_index)
        ],
        "note": "" if attribution.view.scope is PidScope.HOST else attribution.view.sentence,
    }


def explain(snapshot: Snapshot, pid: int) -> str | None:
    """Each step of one process's attribution, for every GPU it is on; None where it is on none."""
    attribution, _ = _known(snapshot)
    rows = [row for row in attribution.processes if row.pid == pid] if attribution else []
    blocks = []
    for row in rows:
        steps = [f"  {number}. {printable(step)}" for number, step in enumerate(row.steps, start=1)]
        verdict = f"owner: {_owner(row.owner)}" if row.owner else f"no owner: {row.reason}"
        use = ", ".join(
            f"{name} {_amount(part, unit)} ({part.basis})"
            for name, part, unit in (("memory", row.memory, "B"), ("SM", row.sm, "%"), ("power", row.power, "W"))
            if part is not None
        )
        blocks.append("\n".join([f"pid {pid} on {_place(row)}", *steps, f"  {verdict}", f"  {use or 'no readings'}"]))
    return "\n\n".join(blocks) + "\n" if blocks else None


def _known(snapshot: Snapshot) -> tuple[Attribution | None, dict[str, Gpu]]:
    gpus = snapshot.readings.gpus.gpus if snapshot.readings.gpus else ()
    return snapshot.readings.attribution, {gpu.identity.uuid: gpu for gpu in gpus}


def _nothing(snapshot: Snapshot) -> str:
    state = snapshot.sources.get("nvml")
    why = "; ".join(filter(None, (state.detail, state.remedy))) if state else "they are not read on this machine"
    return f"no GPU readings: {printable(why)}\n"


def _gpu_line(account: GpuAccount, gpu: Gpu | None) -> str:
    parts = [f"GPU {account.gpu_index}", printable(gpu.identity.name if gpu else account.gpu_uuid)]
    total = gpu.readings.memory_total_bytes if gpu else None
    if account.memory_used_bytes is not None:
        of = f" of {_bytes(total)}" if total is not None else ""
        parts.append(f"{_bytes(account.memory_used_bytes)}{of} used")
    if account.sm_millionths is not None:
        parts.append(f"SM {_percent(account.sm_millionths)}")
    if account.power_milliwatts is not None:
        parts.append(_watts(account.power_milliwatts))
    return "  ".join(parts)


def _process_lines(rows: Sequence[ProcessShare]) -> Iterator[str]:
    if not rows:
        yield "  no process"
        return
    cells = [_HEADINGS, *(tuple(_cells(row)) for row in rows)]
    # Columns that say nothing about anybody are left out, those that a reader looks for first are not.
    shown = [i for i in range(len(_HEADINGS)) if i <= _NUMBERS or any(row[i] != _NONE for row in cells[1:])]
    widths = {i: max(len(row[i]) for row in cells) for i in shown}
    for row in cells:
        aligned = (row[i].rjust(widths[i]) if i < _NUMBERS else row[i].ljust(widths[i]) for i in shown)
        yield ("  " + "  ".join(aligned)).rstrip()


def _cells(row: ProcessShare) -> Iterator[str]:
    found = row.workload
    yield _amount(row.memory, "B")
    yield _amount(row.sm, "%")
    yield _amount(row.power, "W")
    yield str(row.pid)
    yield _name(found.process_name)
    yield _name(found.user or (str(found.uid) if found.uid is not None else None))
    yield _owner(row.owner) if row.owner else f"({row.reason})"
    yield _name(found.container_name or (found.container_id or "")[:_SHORT_ID])
    yield _name(f"{found.pod.namespace}/{found.pod.name}" if found.pod and found.pod.name else None)
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


def _row_value(row: ProcessShare) -> dict[str, object]:
    found = row.workload
    return {
        "pid": row.pid,
        "start_ticks": row.key.start_ticks if row.key else None,
        "gpu_instance_id": row.place.gpu_instance_id,
        "process": found.process_name,
        "uid": found.uid,
        "user": found.user,
        "owner": {"kind": row.owner.kind, "id": row.owner.id, "name": row.owner.name, "namespace": row.owner.namespace}
        if row.owner
        else None,
        "reason": row.reason,
        "container_id": found.container_id,
        "container": found.container_name,
        "image": found.image,
        "pod": {
            "uid": found.pod.uid,
            "name": found.pod.name,
            "namespace": found.pod.namespace,
            "container": found.pod.container,
        }
        if found.pod
        else None,
        "job": found.job,
        "unit": found.unit,
        "memory_bytes": _part_value(row.memory, 1),
        "sm_ratio": _part_value(row.sm, 1_000_000),
        "power_watts": _part_value(row.power, 1000),
    }


def _part_value(part: Portion | None, unit: int) -> dict[str, object] | None:
    return None if part is None else {"value": _scaled(part.amount, unit), "basis": part.basis}


def _rest_value(row: Unattributed) -> dict[str, object]:
    return {
        "reason": row.reason,
        "why": SENTENCES[row.reason],
        "memory_bytes": row.memory_bytes,
        "sm_ratio": _scaled(row.sm_millionths, 1_000_000),
        "power_watts": _scaled(row.power_milliwatts, 1000),
    }


def _scaled(amount: int | None, unit: int) -> float | None:
    return amount if amount is None or unit == 1 else amount / unit


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
    name = f"{owner.namespace}/{owner.name}" if owner.namespace else owner.name
    return f"{owner.kind} {printable(name, _MOST_NAME)}"


def _name(text: str | None) -> str:
    return printable(text, _MOST_NAME) if text else _NONE


def _place(row: ProcessShare) -> str:
    instance = row.place.gpu_instance_id
    return f"GPU {row.place.gpu_index}" + (f", MIG instance {instance}" if instance is not None else "")
