"""The thread that writes the ledger, off the event loop. The agent continues whatever the disk does.

It is a daemon thread: a write that hangs does not keep the process from ending. What cannot be written stays in
memory for up to an hour and is retried at each flush.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from gpucommons.base.processes import boot_id
from gpucommons.base.threads import WorkerThread
from gpucommons.ledger.backup import back_up, backup_time, counters_of_both, replace_damaged
from gpucommons.ledger.errors import LedgerCorrupt, LedgerError
from gpucommons.ledger.integrate import NS, Backlog, Batch, Moment
from gpucommons.ledger.query import Totals, read_totals
from gpucommons.ledger.schema import DAY_S, Retention
from gpucommons.ledger.store import RESTART, RESTORED, Store, new_run
from gpucommons.model.accounts import LedgerState, OwnerKey

KEEP_IN_MEMORY_S = 3600.0
_PRUNE_EVERY_S = 3600.0
_BACK_UP_EVERY_S = DAY_S
_RETRY_BACKUP_S = 3600.0

log = logging.getLogger(__name__)


class WriterState(NamedTuple):
    """What the thread publishes, replaced as a whole: totals and state are of the same flush."""

    state: LedgerState = LedgerState()
    totals: Mapping[OwnerKey, Totals] | None = None


class LedgerWriter:
    """`submit` may be called from the event loop: it only queues the batch."""

    def __init__(
        self,
        path: Path,
        retention: Retention | None = None,
        keep_in_memory_s: float = KEEP_IN_MEMORY_S,
        open_store: Callable[[Path, str, str], Store] = Store,
    ) -> None:
        self._path = path
        self._retention = retention or Retention()
        self._open_store = open_store
        self._run = new_run()
        self._boot_id = boot_id()
        self._backlog = Backlog(keep_in_memory_s)
        self._wakeup = threading.Condition()
        # Batches that were submitted, and those that were flushed.
        self._submitted = self._flushed = 0
        self._closing = False
        self._begun: Moment | None = None
        self._store: Store | None = None
        self._base: dict[OwnerKey, Totals] | None = None
        self._peeked = False
        # Published until the ledger could be read.
        self._volatile: dict[OwnerKey, Totals] = {}
        # Of a damaged file that was replaced: its counters, and how old its backup was.
        self._survivors: tuple[dict[OwnerKey, Totals], float] | None = None
        self._gap_reason = RESTART
        self._written_until: Moment | None = None
        self._next_backup_s: float | None = None
        self._pruned_ns: int | None = None
        self._least_offset_s: float | None = None
        self.published = WriterState()
        self._thread = WorkerThread("ledger")

    def start(self, begun: Moment) -> None:
        """Open the ledger and record this run, on the thread."""
        self._begun = begun
        self.published = WriterState(self.published.state._replace(begun=True))
        self._thread.submit(self._work)

    @property
    def state(self) -> LedgerState:
        return self.published.state

    @property
    def totals(self) -> Mapping[OwnerKey, Totals] | None:
        return self.published.totals

    def submit(self, batch: Batch, until: Moment) -> None:
        with self._wakeup:
            self._backlog.add(batch, until)
            if self._base is None:
                self._volatile = _add_batch(self._volatile, batch, until.wall_s)
            self._submitted += 1
        if self._begun is not None:
            self._thread.submit(self._catch_up)

    def close(self, timeout_s: float) -> bool:
        """Write what is pending and end the thread. False if that was not done in time."""
        with self._wakeup:
            self._closing = True
            self._wakeup.notify_all()
        if self._begun is None:
            return True
        self._thread.submit(self._work)
        self._thread.submit(self._drop_store)
        return self._thread.close(timeout_s)

    def wait_written(self, timeout_s: float) -> None:
        """Block until what was submitted is written, or could not be written, or for `timeout_s`."""
        with self._wakeup:
            submitted = self._submitted
            self._wakeup.wait_for(lambda: self._flushed >= submitted or self._closing, timeout_s)

    # -- on the thread

    def _catch_up(self) -> None:
        """One flush writes all that was submitted: what it has written needs no other."""
        if self._flushed < self._submitted:
            self._work()

    def _work(self) -> None:
        submitted = self._submitted
        try:
            self._flush()
        except Exception:
            # A bug must not end the accounts: the batch stays and is retried.
            log.exception("ledger: unexpected error in a flush; it is retried")
            self._drop_store()
        with self._wakeup:
            self._flushed = submitted
            self._wakeup.notify_all()

    def _flush(self) -> None:
        try:
            self._write_backlog()
        except LedgerCorrupt as error:
            self._replace_damaged(error)
        except LedgerError as error:
            self._record_failure(error)

    def _write_backlog(self) -> None:
        if self._store is not None and not self._store.is_in_place():
            self._replace_lost_file()
        store = self._store if self._store is not None else self._open()
        until: Moment | None = None
        while True:
            with self._wakeup:
                entry = self._backlog.first()
            if entry is None or entry.number is None:
                break
            store.write(entry.number, entry.batch, entry.until)
            until = self._written_until = entry.until
            with self._wakeup:
                self._backlog.remove_written(entry)
            self._base = _add_batch(self._base or {}, entry.batch, until.wall_s)
        if until is not None:
            self._maybe_prune(store, until)
            self._maybe_back_up(until.wall_s)
        self._record_success(store, until)

    def _open(self) -> Store:
        store = self._open_store(self._path, self._run, self._boot_id)
        try:
            if self._survivors is not None:
                self._base, self._peeked = counters_of_both(store.totals(), *self._survivors), False
                store.seed_totals(self._base)
                self._survivors = None
            elif self._base is None or self._peeked:
                self._base, self._peeked = store.totals(), False
            else:
                # Not read again: the file may contain a batch that is about to be retried, and counted twice.
                store.seed_totals(self._base)
            if self._begun is not None:
                store.begin(self._begun, self._gap_reason)
        except BaseException:
            store.close()
            raise
        self._store = store
        return store

    def _record_success(self, store: Store, until: Moment | None) -> None:
        if not self.state.writing:
            log.info("ledger %s: writing", self._path)
        self._publish(
            self.state._replace(
                writing=True,
                durable=True,
                detail="",
                last_flush_wall_s=self.state.last_flush_wall_s if until is None else until.wall_s,
                gap_ns=store.gap_ns(),
                file_bytes=store.file_bytes(),
                disk_free_bytes=store.disk_free_bytes(),
            )
        )

    def _record_failure(self, error: LedgerError) -> None:
        self._drop_store()
        if self._base is None:
            self._peek()
        detail = f"{self._path}: {error}"
        if self.state.writing or not self.state.failures or self.state.detail != detail:
            log.error("ledger %s: %s; the last hour is kept in memory and retried at each flush", self._path, error)
        durable = self._base is not None
        self._publish(
            self.state._replace(writing=False, durable=durable, detail=detail, failures=self._failures_with(error))
        )

    def _failures_with(self, error: LedgerError) -> dict[str, int]:
        return {**self.state.failures, error.reason: self.state.failures.get(error.reason, 0) + 1}

    def _peek(self) -> None:
        """A ledger that cannot be written may still be readable: its counters then stay instead of restarting at 0."""
        try:
            self._base, self._peeked = read_totals(self._path), True
        except LedgerError:
            self._base = None

    def _publish(self, state: LedgerState) -> None:
        """Publish the totals that are on the disk, so that no crash decreases a counter.

        If the ledger could never be read, publish what was counted since the start.
        """
        with self._wakeup:
            fresh = dict(self._volatile if self._base is None else self._base)
            state = state._replace(backlog_s=self._backlog.seconds, lost_s=self._backlog.lost_s)
        for key, served in (self.totals or {}).items():
            now = fresh.get(key, served)
            fresh[key] = Totals(now.amounts.at_least(served.amounts), max(now.last_wall_s, served.last_wall_s))
        self.published = WriterState(state, fresh)

    def _replace_damaged(self, error: LedgerCorrupt) -> None:
        """What was billed since the backup is lost in the new file, where that time is a gap. The counters go on."""
        self._drop_store()
        damaged = self._read_counters() if self._base is None or self._peeked else None
        try:
            aside, backed_up_s = replace_damaged(self._path, time.time())
        except LedgerError as refused:
            self._record_failure(refused)
            return
        if backed_up_s is None:
            outcome = "there is no backup of it, and the accounts begin with a new file"
        else:
            outcome = f"restored from the backup of {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime(backed_up_s))}"
            if damaged is not None and self._begun is not None:
                self._survivors = damaged, self._begun.wall_s - backed_up_s
        log.error("ledger %s: damaged (%s); renamed to %s; %s", self._path, error, aside, outcome)
        # The backup may have an earlier state of this run: a run of its own shows where the gap ends.
        self._run, self._gap_reason = new_run(), RESTORED
        self._begun = self._written_until or self._begun
        self._publish(self.state._replace(failures=self._failures_with(error)))
        try:
            self._write_backlog()
        except LedgerError as again:
            self._record_failure(again)

    def _read_counters(self) -> dict[OwnerKey, Totals] | None:
        try:
            return read_totals(self._path)
        except LedgerError:
            return None

    def _maybe_back_up(self, wall_s: float) -> None:
        """Once a day, also over restarts. Raises LedgerCorrupt where the copy shows that the ledger is damaged."""
        if self._next_backup_s is None:
            made_s = backup_time(self._path)
            self._next_backup_s = wall_s if made_s is None else made_s + _BACK_UP_EVERY_S
        # A backup of the future was made while the clock was wrong.
        if self._next_backup_s - _BACK_UP_EVERY_S <= wall_s < self._next_backup_s:
            return
        try:
            back_up(self._path, wall_s)
        except LedgerCorrupt:
            raise
        except LedgerError as error:
            log.error("ledger %s: no backup was made: %s; it is tried again in an hour", self._path, error)
            self._next_backup_s = wall_s + _RETRY_BACKUP_S
        else:
            self._next_backup_s = wall_s + _BACK_UP_EVERY_S

    def _replace_lost_file(self) -> None:
        """What memory has goes into the next file: the counters, and what was not written yet."""
        self._drop_store()
        log.error("ledger %s: deleted or replaced while in use; continued with the counters in memory", self._path)
        error = LedgerError("replaced", "deleted or replaced while in use")
        self._publish(self.state._replace(failures=self._failures_with(error)))

    def _maybe_prune(self, store: Store, until: Moment) -> None:
        """Once an hour, by the earliest date that the clock has shown: a clock that jumps ahead deletes nothing."""
        offset_s = until.wall_s - until.monotonic_ns / NS
        least = offset_s if self._least_offset_s is None else min(offset_s, self._least_offset_s)
        self._least_offset_s = least
        if self._pruned_ns is None:
            self._pruned_ns = until.monotonic_ns
        elif until.monotonic_ns - self._pruned_ns >= _PRUNE_EVERY_S * NS:
            self._pruned_ns = until.monotonic_ns
            store.prune(self._retention, least + until.monotonic_ns / NS)

    def _drop_store(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None


def _add_batch(totals: Mapping[OwnerKey, Totals], batch: Batch, wall_s: float) -> dict[OwnerKey, Totals]:
    """A new mapping: readers may still hold the old one."""
    added = dict(totals)
    for key, amounts in batch.by_owner().items():
        total = added.get(key)
        added[key] = Totals(total.amounts.plus(amounts) if total else amounts, wall_s)
    return added
