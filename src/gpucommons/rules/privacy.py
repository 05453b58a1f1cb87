"""What a peer may see: every name, or a snapshot without the names of others. Pure.

One `Privacy` per listener turns a peer into a `Viewer`, which is the whole decision: routes read the viewer and know
nothing of listeners. docs/web.md has the table. What others use stays in the sums, folded into one nameless owner per
GPU, so that the node still adds up.
"""

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from gpucommons.model.accounts import AccountsReading
from gpucommons.model.alerts import Alert, AlertsReading
from gpucommons.model.events import Event, EventLogReading
from gpucommons.model.ownership import Attribution, Basis, Owner, OwnerKind, OwnerShare, Portion, ProcessShare
from gpucommons.model.sharing import ClientSharing, GpuSharing, SharingReading, Timeline, Turn
from gpucommons.model.snapshot import Snapshot

OTHERS = Owner(OwnerKind.USER, "others", "others")
_NAMELESS_LABELS = frozenset({"alertname", "severity", "gpu", "gpu_slot", "uuid", "UUID", "instance", "job", "node"})
_NAMELESS_DETAILS = frozenset({"gpu", "slot", "uuid", "pci", "xid", "reason", "count"})
_KEY = secrets.token_bytes(16)


@dataclass(frozen=True, slots=True)
class Viewer:
    """Without `sees_all`, only the rows of `uid` and `user` are visible, and none where they are None.

    Metrics name owners, so a viewer who does not see all gets them only with `metrics_open`.
    """

    sees_all: bool = True
    uid: int | None = None
    user: str | None = None
    metrics_open: bool = False

    @property
    def sees_metrics(self) -> bool:
        return self.sees_all or self.metrics_open


SEES_ALL = Viewer()


@dataclass(frozen=True, slots=True)
class Privacy:
    """The rule of one listener, main or drop-in. `show_owners` is the setting: auto, all or own."""

    show_owners: str = "auto"
    unix: bool = False
    loopback: bool = True
    agent_uid: int = 0

    @property
    def depends_on_peer(self) -> bool:
        """Whether two peers of this listener may see different things."""
        return self.show_owners == "own" or (self.show_owners == "auto" and (self.unix or not self.loopback))

    def viewer(self, peer_uid: int | None, user: str | None, authenticated: bool) -> Viewer:
        """A peer sees all if it is root or the agent's user (Unix socket), or gave a password (TCP)."""
        if not self.depends_on_peer or authenticated or peer_uid in (0, self.agent_uid):
            return SEES_ALL
        # A scraper over TCP cannot be identified: with auto the address of the listener is what limits access.
        return Viewer(False, peer_uid, user, metrics_open=self.show_owners == "auto" and not self.unix)


def seen_by(snapshot: Snapshot, viewer: Viewer) -> Snapshot:
    if viewer.sees_all:
        return snapshot
    readings = snapshot.readings
    return replace(
        snapshot,
        readings=replace(
            readings,
            processes=None,
            docker=None,
            podman=None,
            pods=None,
            pod_devices=None,
            ds01=None,
            users=None,
            allocations=None,
            ledger=None,
            attribution=None if readings.attribution is None else _attribution(readings.attribution, viewer),
            sharing=None if readings.sharing is None else _sharing(readings.sharing, viewer),
            accounts=None if readings.accounts is None else _accounts(readings.accounts, viewer),
            event_log=None if readings.event_log is None else _event_log(readings.event_log, viewer),
            alerts=None
            if readings.alerts is None
            else AlertsReading(tuple(_alert(alert, viewer) for alert in readings.alerts.alerts)),
        ),
    )


def timeline_seen_by(timeline: Timeline, viewer: Viewer) -> Timeline:
    if viewer.sees_all:
        return timeline
    return {uuid: tuple(_turn(turn, viewer) for turn in turns) for uuid, turns in timeline.items()}


def _attribution(attribution: Attribution, viewer: Viewer) -> Attribution:
    own = tuple(share for share in attribution.processes if _is_own_process(share, viewer))
    own_owners = {share.owner for share in own if share.owner is not None}
    shown = [share for share in attribution.owners if share.owner in own_owners]
    hidden = [share for share in attribution.owners if share.owner not in own_owners]
    return replace(attribution, processes=own, owners=(*shown, *_folded(hidden)))


def _is_own_process(share: ProcessShare, viewer: Viewer) -> bool:
    return viewer.uid is not None and share.workload.uid == viewer.uid


def _folded(shares: Iterable[OwnerShare]) -> Iterable[OwnerShare]:
    by_gpu: dict[str, list[OwnerShare]] = {}
    for share in shares:
        by_gpu.setdefault(share.gpu_uuid, []).append(share)
    for uuid, rows in by_gpu.items():
        yield OwnerShare(
            uuid,
            rows[0].gpu_index,
            OTHERS,
            sum(row.processes for row in rows),
            _sum(row.memory for row in rows),
            _sum(row.sm for row in rows),
            _sum(row.power for row in rows),
        )


def _sum(parts: Iterable[Portion | None]) -> Portion | None:
    known = [part for part in parts if part is not None]
    if not known:
        return None
    measured = all(part.basis is Basis.MEASURED for part in known)
    return Portion(sum(part.amount for part in known), Basis.MEASURED if measured else Basis.APPORTIONED)


def _sharing(sharing: SharingReading, viewer: Viewer) -> SharingReading:
    names = {client.client_id: _client_name(client.client_id, client.uid, viewer) for client in sharing.clients}
    return replace(
        sharing,
        gpus=tuple(_gpu_sharing(gpu, names) for gpu in sharing.gpus),
        clients=tuple(_client(client, viewer) for client in sharing.clients),
        departed=(),
    )


def _gpu_sharing(gpu: GpuSharing, names: Mapping[str, str]) -> GpuSharing:
    def renamed(ids: Iterable[str]) -> tuple[str, ...]:
        return tuple(names.get(id) or pseudonym(id) for id in ids)

    return replace(
        gpu,
        running=renamed(gpu.running),
        request_queue=renamed(gpu.request_queue),
        wait_queue=renamed(gpu.wait_queue),
    )


def _client(client: ClientSharing, viewer: Viewer) -> ClientSharing:
    if viewer.uid is not None and client.uid == viewer.uid:
        return client
    return client._replace(client_id=pseudonym(client.client_id), pod="", namespace="", pid=0, uid=-1, gid=-1)


def _turn(turn: Turn, viewer: Viewer) -> Turn:
    if viewer.uid is not None and turn.uid == viewer.uid:
        return turn
    name = pseudonym(turn.client_id)
    return replace(turn, id=f"{name}.{turn.id.rpartition('.')[2]}", client_id=name, label=name, uid=-1)


def _client_name(client_id: str, uid: int, viewer: Viewer) -> str:
    return client_id if viewer.uid is not None and uid == viewer.uid else pseudonym(client_id)


def pseudonym(client_id: str) -> str:
    """The same for the same client for as long as the agent runs, and not to be traced back."""
    return f"other-{hmac.digest(_KEY, client_id.encode(), hashlib.sha256).hex()[:8]}"


def _accounts(accounts: AccountsReading, viewer: Viewer) -> AccountsReading:
    return AccountsReading(
        {
            name: replace(period, rows={user: row for user, row in period.rows.items() if user == viewer.user})
            for name, period in accounts.by_period.items()
        },
        {key: ns for key, ns in accounts.held_today_ns.items() if key.account == viewer.user},
    )


def _event_log(event_log: EventLogReading, viewer: Viewer) -> EventLogReading:
    """One's own, and what concerns nobody in particular: of that, only what cannot name anybody (pods have no user)."""
    own = viewer.user is not None
    return EventLogReading(
        tuple(
            entry if entry.user else _nameless(entry)
            for entry in event_log.events
            if not entry.user or (own and entry.user == viewer.user)
        )
    )


def _nameless(entry: Event) -> Event:
    return replace(entry, details={name: told for name, told in entry.details.items() if name in _NAMELESS_DETAILS})


def _alert(alert: Alert, viewer: Viewer) -> Alert:
    """An alert that may be about somebody is shown without its text and the labels that could tell who."""
    if alert.labels.get("user") == viewer.user is not None or set(alert.labels) <= _NAMELESS_LABELS:
        return alert
    labels = {name: value for name, value in alert.labels.items() if name in _NAMELESS_LABELS}
    return replace(alert, summary="", labels=labels)
