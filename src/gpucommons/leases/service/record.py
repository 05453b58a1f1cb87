"""The record of leases, requests and reservations: one small file that outlives the agent.

A client that comes back after a restart shows its token; the record holds the token's hash, so that a client cannot
claim a lease that it did not have, and a reader of the file cannot take one over. Reservations have no client at all:
only a file can keep them. It is replaced as a whole.
"""

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from gpucommons.base.state_file import StateFile
from gpucommons.leases.policy.queue import QueueRecord
from gpucommons.leases.service.limits import OverdueLease
from gpucommons.model.leases import Lease, LeaseRequest, Reservation
from gpucommons.model.process_identity import ProcessKey

_VERSION: Final = 1
_AGES: Final = ("eligible_s", "promised_s")
# It has hashes of tokens.
_MODE: Final = 0o600


class KnownClient(NamedTuple):
    """The client of a lease or request: the hash of its token, and its process, 0 where that is not visible."""

    token_hash: str
    pid: int = 0
    start_ticks: int = 0

    @property
    def process(self) -> ProcessKey:
        return ProcessKey(self.pid, self.start_ticks)


KnownClients = Mapping[str, KnownClient]
"""By id of the lease or request."""


def hash_token(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


class LeaseRecord:
    """`boot_id` changes when the machine restarts: then every command has ended, and only reservations are left."""

    def __init__(self, path: Path, boot_id: str) -> None:
        self._file = StateFile(path, "leases", "a restart of the agent would lose the leases", _MODE)
        self._boot_id = boot_id

    @property
    def writing(self) -> bool:
        """Whether it can be written."""
        return self._file.writing

    def read(self) -> tuple[QueueRecord, KnownClients, tuple[OverdueLease, ...]]:
        nothing: tuple[QueueRecord, KnownClients, tuple[OverdueLease, ...]] = (QueueRecord(), {}, ())
        return self._file.read(self._parse, nothing)

    def write(
        self, queue: QueueRecord, clients: KnownClients, overdue: Iterable[OverdueLease] = (), durably: bool = False
    ) -> None:
        """`durably` also survives a power failure. A failure is logged once; leases go on without a record."""
        value = {
            "version": _VERSION,
            "boot_id": self._boot_id,
            "leases": [dataclasses.asdict(lease) for lease in queue.leases],
            "waiting": [dataclasses.asdict(request) for request in queue.waiting],
            "reservations": [dataclasses.asdict(reservation) for reservation in queue.reservations],
            "ended": queue.ended,
            "next_number": queue.next_number,
            "eligible_s": queue.eligible_s,
            "promised_s": queue.promised_s,
            "clients": clients,
            "overdue": [_overdue_value(lease) for lease in overdue],
        }
        self._file.write(value, durably)

    def _parse(self, value: dict[str, Any]) -> tuple[QueueRecord, KnownClients, tuple[OverdueLease, ...]]:
        reservations = tuple(
            Reservation(**{**fields, "slots": tuple(fields["slots"])}) for fields in value.get("reservations", ())
        )
        ended = tuple((str(user), float(seconds)) for user, seconds in value.get("ended", ()))
        number = int(value.get("next_number", 1))
        if value.get("boot_id") != self._boot_id:
            return QueueRecord((), (), reservations, ended, number), {}, ()
        leases = tuple(map(_lease, value["leases"]))
        waiting = tuple(LeaseRequest(**fields) for fields in value["waiting"])
        # Release 0.1.0 has no ages and no overdue leases.
        ages = ({str(id): float(at_s) for id, at_s in value.get(name, {}).items()} for name in _AGES)
        clients = {id: KnownClient(*fields) for id, fields in value["clients"].items()}
        overdue = tuple(map(_overdue, value.get("overdue", ())))
        return QueueRecord(leases, waiting, reservations, ended, number, *ages), clients, overdue


def _lease(value: Mapping[str, Any]) -> Lease:
    return Lease(LeaseRequest(**value["request"]), tuple(value["slots"]), value["gpus"], value["since_s"])


def _overdue_value(overdue: OverdueLease) -> dict[str, Any]:
    return {
        "lease": dataclasses.asdict(overdue.lease),
        "client": overdue.client,
        "ended_s": overdue.ended_s,
        "programs": sorted(overdue.programs),
        "looked": overdue.looked,
    }


def _overdue(value: Mapping[str, Any]) -> OverdueLease:
    programs = frozenset(ProcessKey(*fields) for fields in value["programs"])
    return OverdueLease(
        _lease(value["lease"]), ProcessKey(*value["client"]), value["ended_s"], programs, value["looked"]
    )
