"""`gpucommons resume`: let paused programs run again. Needs no agent: the record says what is paused."""

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated

import typer

from gpucommons.base.text import printable_lines
from gpucommons.cli.command_line import CommandError
from gpucommons.cli.options import AsJson
from gpucommons.cli.output import show
from gpucommons.faces.documents.values import Json, indent
from gpucommons.pauser import cuda, release
from gpucommons.pauser.arrivals import DEVICE_FILES, cuda_users
from gpucommons.pauser.backend import Failure, PauseBackend, State
from gpucommons.pauser.freeze import Freeze
from gpucommons.pauser.places import default_record, known_records
from gpucommons.pauser.record import Entry, PauseRecord, RecordError, Stage
from gpucommons.pauser.release import FINAL, Leftover, Outcome, attempt
from gpucommons.pauser.stopped import why_stopped
from gpucommons.sources.nvml import queries

# A lock whose caller died may still be carried out a moment later; a driver call may have to be tried again.
_WITHIN_S = 3.0
_CLAIM_S = 1.0


def resume(
    all_: Annotated[bool, typer.Option("--all", help="Every program in the records of paused programs.")] = False,
    pid: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="One program, also if no record names it.", show_default=False),
    ] = None,
    record: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="A record of paused programs; may be repeated. Default: all known places.",
            show_default=False,
        ),
    ] = None,
    device_files: Annotated[
        Path, typer.Option(metavar="DIR", help="Where the GPUs' device files are, by which lost programs are found.")
    ] = DEVICE_FILES,
    as_json: AsJson = False,
) -> None:
    """Resume paused programs. Parked ones come back one after another where the GPU has the room.

    Exit status: 0 all resumed or nothing to do, 1 something could not be resumed, 2 wrong usage.
    """
    if all_ == (pid is not None):
        raise CommandError("name what to resume: --all, or --pid N")
    driver = cuda.load()
    backends: dict[str, PauseBackend] = {"freeze": Freeze()}
    if not isinstance(driver, Failure):
        backends["cuda"] = driver
    leftovers: list[Leftover] = []
    notes: list[str] = []
    places = [(path, None) for path in record] if record else known_records(os.environ, os.geteuid())
    for path, owner in places:
        _resume_record(path, owner, backends, pid, leftovers, notes)
    if all_ and not isinstance(driver, Failure):
        place = record[0] if record else default_record(os.environ, os.geteuid())
        _resume_lost(place, cuda_users(device_files), driver, backends, leftovers, notes)
    if pid is not None and not leftovers:
        leftovers.append(_resume_one(pid, backends))
    if isinstance(driver, Failure) and any(not left.is_resumed for left in leftovers):
        notes.append(driver.meaning)
    show(indent(_document(leftovers, notes)) if as_json else printable_lines(_lines(leftovers, notes)))
    if any(not left.is_resumed for left in leftovers):
        raise typer.Exit(1)


def _resume_record(
    path: Path,
    owner: int | None,
    backends: Mapping[str, PauseBackend],
    pid: int | None,
    leftovers: list[Leftover],
    notes: list[str],
) -> None:
    """`owner` is whose record must stand there: a user could have put a link to another's directory in its place."""
    try:
        record = PauseRecord.open_existing(path)
    except RecordError as error:
        raise CommandError(str(error)) from error
    if record is None:
        return
    try:
        if owner not in (None, record.owner):
            notes.append(f"{path} is passed over: it belongs to uid {record.owner}")
            return
        owned = record.claim(_CLAIM_S)
        results = release.resume(
            record, backends, owned=owned, within_s=_WITHIN_S, room=_room, accept=_acceptable(record.owner, pid)
        )
    except OSError as error:
        raise CommandError(f"cannot use the record of paused programs {path}: {error.strerror}") from error
    finally:
        record.close()
    leftovers += results
    if results and not owned:
        notes.append(f"a pauser is running with {path}: it may pause programs again and keeps parked ones")


def _resume_lost(
    path: Path,
    users: Iterable[int],
    driver: PauseBackend,
    backends: Mapping[str, PauseBackend],
    leftovers: list[Leftover],
    notes: list[str],
) -> None:
    """Parked programs that no record names, because it was deleted or damaged: the driver knows them."""
    tried_pids = {left.entry.pid for left in leftovers}
    pids = [pid for pid in users if pid not in tried_pids]
    parked = [pid for pid in pids if not why_stopped(pid) and driver.state(pid) is State.CHECKPOINTED]
    if not parked:
        return
    try:
        with contextlib.closing(PauseRecord.open(path)) as record:
            lost = release.write_lost(record, driver, parked, _WITHIN_S)
    except (RecordError, OSError) as error:
        raise CommandError(str(error)) from error
    if lost:
        notes.append(f"no record named {len(lost)} parked programs: the driver did")
        _resume_record(path, None, backends, None, leftovers, notes)


def _acceptable(owner: int, pid: int | None) -> Callable[[Entry], bool]:
    """A user's record speaks for that user's programs only, whatever is written in it."""

    def accept(entry: Entry) -> bool:
        if pid is not None and entry.pid != pid:
            return False
        try:
            return owner == 0 or os.stat(f"/proc/{entry.pid}").st_uid == owner
        except OSError:
            return True

    return accept


def _resume_one(pid: int, backends: Mapping[str, PauseBackend]) -> Leftover:
    """A program that no record names, as the driver sees it."""
    tried = [attempt(backends, Entry(pid, None, Stage.LOCKED, name), settled=True) for name in ("cuda", "freeze")]
    best = min(tried, key=lambda attempt: (attempt.outcome is not Outcome.RESUMED, attempt.outcome in FINAL))
    return Leftover(Entry(pid, None, Stage.LOCKED), best.outcome, best.detail)


def _room(gpu: str) -> int | str:
    """The free bytes of this GPU by NVML; of the fullest GPU where it is not known which one is meant."""
    try:
        with queries.open_session():
            devices = [queries.gpu_at(index) for index in range(queries.count_gpus())]
            free = [queries.free_bytes(device) for device in devices if gpu in ("", queries.uuid_of(device))]
    except queries.DriverError as error:
        return f"the free memory of the GPU is unknown ({error})"
    return min(free) if free else f"there is no GPU {gpu}"


def _lines(leftovers: list[Leftover], notes: list[str]) -> list[str]:
    lines = [
        f"pid {left.entry.pid}: {left.outcome.value}{f': {left.detail}' if left.detail else ''}" for left in leftovers
    ]
    return [*(lines or ["nothing is paused"]), *(f"note: {note}" for note in notes)]


def _document(leftovers: list[Leftover], notes: list[str]) -> Json:
    programs: list[Json] = [
        {
            "pid": left.entry.pid,
            "start_ticks": left.entry.start_ticks,
            "stage": left.entry.stage.value,
            "resumed": left.is_resumed,
            "outcome": left.outcome.value,
            "detail": left.detail,
        }
        for left in leftovers
    ]
    return {"programs": programs, "notes": notes}
