"""What a viewer may see. Pure.

One `Privacy` per listener turns a peer into a `Viewer`; routes read only the viewer. There are three kinds:

- one that sees all: root, the agent's user, an administrator with a password;
- a local user, who sees of other users what `ps` and `nvidia-smi` show to every user of the machine: names, pids,
  names of programs and their GPU use, now and in the accounts; not command lines, environments, arguments of jobs or
  messages;
- any other viewer: a process in a container, a peer off loopback, a user where `ps` hides the processes of others
  (hidepid) or the administrator does (`show_owners = "own"`). It sees its own rows, if it is identified, and the use of
  other owners folded into one owner without a name per GPU, so that the node still adds up.

`redact` builds the viewer's snapshot from the readings that are named in it: every other reading is hidden.
docs/web.md has the table.
"""

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from gpucommons.model.accounts import AccountsReading, LedgerReading, LedgerState, PeriodAccounts
from gpucommons.model.allocations import AllocationReading, SlotsReading, SlotStatus
from gpucommons.model.cost import quota_states
from gpucommons.model.events import Alert, AlertsReading, Event, EventLogReading
from gpucommons.model.fleet import FleetSlot, FleetView
from gpucommons.model.gpu import XidProgramsReading
from gpucommons.model.idle import IdleReading
from gpucommons.model.leases import LeaseRequest, LeasesReading, LeaseWait, MpsReading, Reservation, SlotBlocker
from gpucommons.model.ownership import Attribution, Owner, OwnerKind, OwnerShare, ProcessShare, sum_portions
from gpucommons.model.process_identity import CommandLineReading, ProcessKey, ProcessTable
from gpucommons.model.sharing import (
    ClientSharing,
    GpuSharing,
    ParkedFor,
    ParkedReading,
    ParkingReading,
    SharingReading,
    Timeline,
    Turn,
)
from gpucommons.model.snapshot import Readings, Snapshot
from gpucommons.model.viewer import SEES_ALL, Viewer

OTHERS = Owner(OwnerKind.USER, "others", "others")
_NAMELESS_LABELS = frozenset({"alertname", "severity", "gpu", "gpu_slot", "uuid", "UUID", "instance", "job", "node"})
_NAMELESS_DETAILS = frozenset({"gpu", "slot", "uuid", "pci", "xid", "reason", "count"})
_KEY = secrets.token_bytes(16)


class Privacy(NamedTuple):
    """The rule of one listener, main or drop-in. `show_owners` is the setting: auto, all or own.

    `hides_processes`: procfs is mounted with hidepid, so that users do not see each other's processes.
    """

    show_owners: str = "auto"
    unix: bool = False
    loopback: bool = True
    agent_uid: int = 0
    hides_processes: bool = False

    @property
    def identifies_peers(self) -> bool:
        """Whether it matters which user or process a peer is."""
        return self.unix and self.show_owners != "all"

    def viewer(self, peer_uid: int | None, user: str | None, authenticated: bool, is_local: bool = True) -> Viewer:
        """A peer sees all if it is root or the agent's user (Unix socket), or gave a password (TCP).

        `is_local`: it is in the user and pid namespace of the agent. A process in a container is not, and may have any
        uid there, so that its uid counts for nothing.
        """
        if self.show_owners == "all" or authenticated:
            return SEES_ALL
        if self.unix and not is_local:
            return Viewer(False)
        if self.unix and peer_uid in (0, self.agent_uid):
            return SEES_ALL
        # A scraper over TCP cannot be identified: with auto the address of the listener is what limits access.
        metrics_open = self.show_owners == "auto" and not self.unix
        is_near = self.unix or self.loopback
        return Viewer(
            False,
            peer_uid,
            user,
            metrics_open,
            sees_names=self.show_owners == "auto" and is_near and not self.hides_processes,
        )


class Hidden(NamedTuple):
    """The sections of a document in which rows of other owners are hidden, and the sentence that says so."""

    sections: tuple[str, ...]
    sentence: str


SECTIONS = ("who", "allocations", "slots", "turns", "queue", "messages", "accounts", "events", "alerts")
_OWN_ONLY = "hidden: you see your own"
_UNIDENTIFIED = (
    "hidden: you see your own, and this connection does not identify you; "
    "use the Unix socket (web.socket) or a password"
)


def find_hidden(snapshot: Snapshot, viewer: Viewer) -> Hidden | None:
    """None where nothing is hidden. A section without a reading is missing, not hidden."""
    if viewer.sees_all:
        return None
    sentence = _UNIDENTIFIED if viewer.uid is None else _OWN_ONLY
    if viewer.sees_names:
        return Hidden(() if snapshot.readings.idle is None else ("messages",), sentence)
    now = snapshot.readings
    readings = (
        now.attribution,
        now.allocations,
        now.slots,
        now.sharing,
        now.leases,
        now.idle,
        now.accounts,
        now.event_log,
        now.alerts,
    )
    sections = (section for section, reading in zip(SECTIONS, readings, strict=True) if reading is not None)
    return Hidden(tuple(sections), sentence)


def redact(snapshot: Snapshot, viewer: Viewer) -> Snapshot:
    """An allow-list: a reading that is not named here is hidden from a viewer that does not see all."""
    if viewer.sees_all:
        return snapshot
    if viewer.sees_names:
        return snapshot._replace(readings=_with_names(snapshot.readings, viewer))
    readings = snapshot.readings
    own = _own_keys(readings.attribution, viewer)
    return snapshot._replace(
        readings=Readings(
            cpu=readings.cpu,
            memory=readings.memory,
            pressure=readings.pressure,
            gpus=readings.gpus,
            agent=readings.agent,
            attribution=None if readings.attribution is None else _attribution(readings.attribution, viewer),
            allocations=None if readings.allocations is None else _allocations(readings.allocations, viewer),
            slots=None if readings.slots is None else _slots(readings.slots, viewer),
            ledger=None if readings.ledger is None else _ledger(readings.ledger, readings.allocations, viewer),
            sharing=None if readings.sharing is None else redact_sharing(readings.sharing, viewer),
            leases=None if readings.leases is None else redact_leases(readings.leases, viewer),
            idle=None if readings.idle is None else _idle(readings.idle, viewer),
            accounts=None if readings.accounts is None else _accounts(readings.accounts, viewer),
            event_log=None if readings.event_log is None else _event_log(readings.event_log, viewer),
            alerts=None if readings.alerts is None else _alerts(readings.alerts, viewer),
            xid_programs=None if readings.xid_programs is None else _xid_programs(readings.xid_programs, viewer),
            processes=None if readings.processes is None else _processes(readings.processes, own),
            command_lines=None if readings.command_lines is None else _command_lines(readings.command_lines, own),
        ),
    )


def _with_names(readings: Readings, viewer: Viewer) -> Readings:
    """What a local user sees: the rows of all users, without what `ps` would need their rights for."""
    shares = readings.attribution.processes if readings.attribution else ()
    on_gpus = frozenset(share.key for share in shares if share.key is not None)
    own = _own_keys(readings.attribution, viewer)
    lines = readings.command_lines
    return Readings(
        cpu=readings.cpu,
        memory=readings.memory,
        pressure=readings.pressure,
        gpus=readings.gpus,
        agent=readings.agent,
        attribution=readings.attribution,
        allocations=readings.allocations,
        slots=readings.slots,
        ledger=readings.ledger,
        sharing=readings.sharing,
        leases=None if readings.leases is None else redact_leases(readings.leases, viewer),
        idle=None if readings.idle is None else _redact_idle(readings.idle, viewer),
        accounts=readings.accounts,
        event_log=None if readings.event_log is None else _redact_events(readings.event_log, viewer),
        alerts=readings.alerts,
        xid_programs=readings.xid_programs,
        processes=None if readings.processes is None else _processes(readings.processes, on_gpus),
        command_lines=None if lines is None else _command_lines(lines, own),
    )


def _redact_idle(reading: IdleReading, viewer: Viewer) -> IdleReading:
    """The viewer's own messages. The detail of a channel may name the address of another user."""
    own = tuple(message for message in reading.messages if viewer.user is not None and message.user == viewer.user)
    channels = tuple(channel._replace(detail="") for channel in reading.channels)
    return reading._replace(messages=own, channels=channels, events=())


def _redact_events(log: EventLogReading, viewer: Viewer) -> EventLogReading:
    return EventLogReading(tuple(_redact_event(event, viewer) for event in log.events))


def _redact_event(event: Event, viewer: Viewer) -> Event:
    """The sentence of another user's event may hold an address, or a line of a log."""
    if not event.user or event.user == viewer.user:
        return event
    return event._replace(details={name: value for name, value in event.details.items() if name != "sentence"})


def find_fleet_hidden(viewer: Viewer) -> Hidden | None:
    """The holders of slots on all nodes. A user has the same name on every node of a fleet."""
    if viewer.sees_accounts:
        return None
    return Hidden(("slots",), _UNIDENTIFIED if viewer.user is None else _OWN_ONLY)


def find_fleet_accounts_hidden(viewer: Viewer) -> Hidden | None:
    """What was billed to other users on all nodes."""
    if viewer.sees_accounts:
        return None
    return Hidden(("accounts",), _UNIDENTIFIED if viewer.user is None else _OWN_ONLY)


def redact_fleet(view: FleetView, viewer: Viewer) -> FleetView:
    if viewer.sees_accounts:
        return view
    return view._replace(slots=tuple(_fleet_slot(slot, viewer) for slot in view.slots))


def _fleet_slot(slot: FleetSlot, viewer: Viewer) -> FleetSlot:
    own = tuple(holder for holder in slot.holders if holder == viewer.user)
    return slot._replace(holders=own, hidden_holders=len(slot.holders) - len(own))


def redact_timeline(timeline: Timeline, viewer: Viewer) -> Timeline:
    if viewer.sees_accounts:
        return timeline
    return {uuid: tuple(_turn(turn, viewer) for turn in turns) for uuid, turns in timeline.items()}


def redact_sharing(sharing: SharingReading, viewer: Viewer) -> SharingReading:
    """Clients and parked programs of other users have pseudonyms; their programs that are left alone are not shown."""
    if viewer.sees_accounts:
        return sharing
    clients = tuple(_client(client, viewer) for client in sharing.clients)
    names = {real.client_id: shown.client_id for real, shown in zip(sharing.clients, clients, strict=True)}
    return sharing._replace(
        gpus=tuple(_gpu_sharing(gpu, names) for gpu in sharing.gpus),
        clients=clients,
        departed=(),
        left_alone=tuple(
            program for program in sharing.left_alone if viewer.uid is not None and program.uid == viewer.uid
        ),
        parking=None if sharing.parking is None else _parking(sharing.parking, viewer),
    )


def _parking(reading: ParkingReading, viewer: Viewer) -> ParkingReading:
    """Other users' parked programs are shown without names; what happened to them is not shown."""
    return reading._replace(
        programs=tuple(_redact_parked(program, viewer) for program in reading.programs),
        events=tuple(event for event in reading.events if viewer.uid is not None and event.uid == viewer.uid),
        expected_rooms={},
        arrivals=tuple(
            arrival._replace(parked=tuple(_redact_newcomer(other, viewer) for other in arrival.parked))
            for arrival in reading.arrivals
            if viewer.uid is not None and arrival.uid == viewer.uid
        ),
    )


def _redact_parked(program: ParkedReading, viewer: Viewer) -> ParkedReading:
    made_for = None if program.made_for is None else _redact_newcomer(program.made_for, viewer)
    if viewer.uid is not None and program.uid == viewer.uid:
        return program._replace(made_for=made_for)
    name = pseudonym(program.key)
    return program._replace(key=name, name=name, user=OTHERS.name, uid=None, pids=(), made_for=made_for)


def _redact_newcomer(newcomer: ParkedFor, viewer: Viewer) -> ParkedFor:
    return (
        newcomer
        if viewer.uid is not None and newcomer.uid == viewer.uid
        else newcomer._replace(name="", user=OTHERS.name, uid=None)
    )


def redact_leases(reading: LeasesReading, viewer: Viewer) -> LeasesReading:
    """Those of other users are shown without user and name, and of the trespassers on their slots only one's own.

    A local user sees the users, and in the place of a name, which its user may have typed, the program.
    """
    if viewer.sees_all:
        return reading
    if viewer.sees_names:
        return reading._replace(
            leases=tuple(replace(lease, request=_redact_request(lease.request, viewer)) for lease in reading.leases),
            waiting=tuple((_redact_request(request, viewer), wait) for request, wait in reading.waiting),
            mps=None if reading.mps is None else _mps(reading.mps, viewer),
        )
    own = {lease.request.id for lease in reading.leases if lease.request.uid == viewer.uid}
    return reading._replace(
        leases=tuple(replace(lease, request=_request(lease.request, viewer)) for lease in reading.leases),
        waiting=tuple((_request(request, viewer), _wait(request, wait, viewer)) for request, wait in reading.waiting),
        reservations=tuple(_reservation(reservation, viewer) for reservation in reading.reservations),
        trespassers=tuple(
            trespasser
            for trespasser in reading.trespassers
            if trespasser.lease_id in own or trespasser.user == viewer.user
        ),
        no_shows=tuple(reservation for reservation in reading.no_shows if reservation.uid == viewer.uid),
        clients={id: client for id, client in reading.clients.items() if id in own},
        mps=None if reading.mps is None else _mps(reading.mps, viewer),
        held_reservations={
            id: tuple(_blocker(blocker, viewer) for blocker in held) for id, held in reading.held_reservations.items()
        },
        quotas={user: uses for user, uses in reading.quotas.items() if user in (viewer.user, "*")},
    )


def _blocker(blocker: SlotBlocker, viewer: Viewer) -> SlotBlocker:
    return blocker._replace(users=tuple(user for user in blocker.users if user == viewer.user))


def _mps(reading: MpsReading, viewer: Viewer) -> MpsReading:
    """A daemon for all users has no user; its log may name programs of others."""
    return reading._replace(
        daemons=tuple(daemon for daemon in reading.daemons if daemon.user in ("", viewer.user)),
        events=tuple(event for event in reading.events if event.user and event.user == viewer.user),
    )


def _redact_request(request: LeaseRequest, viewer: Viewer) -> LeaseRequest:
    return request if request.uid == viewer.uid else replace(request, name=request.program)


def _request(request: LeaseRequest, viewer: Viewer) -> LeaseRequest:
    return request if request.uid == viewer.uid else replace(request, uid=-1, user=OTHERS.name, name="", program="")


def _wait(request: LeaseRequest, wait: LeaseWait, viewer: Viewer) -> LeaseWait:
    """The detail of a quota names its user or group."""
    blockers = tuple(_blocker(blocker, viewer) for blocker in wait.blockers)
    return wait._replace(blockers=blockers, detail=wait.detail if request.uid == viewer.uid else "")


def _reservation(reservation: Reservation, viewer: Viewer) -> Reservation:
    return reservation if reservation.uid == viewer.uid else replace(reservation, uid=-1, user=OTHERS.name)


def _idle(reading: IdleReading, viewer: Viewer) -> IdleReading:
    """The viewer's own messages. The state of a channel may name the address of another user."""
    own = tuple(message for message in reading.messages if viewer.user is not None and message.user == viewer.user)
    return IdleReading(reading.after_s, reading.action, messages=own)


def _attribution(attribution: Attribution, viewer: Viewer) -> Attribution:
    own = tuple(share for share in attribution.processes if _is_own_process(share, viewer))
    own_owners = {share.owner for share in own if share.owner is not None}
    shown = [share for share in attribution.owners if share.owner in own_owners]
    hidden = [share for share in attribution.owners if share.owner not in own_owners]
    return Attribution(
        own, (*shown, *_fold_shares(hidden)), attribution.unattributed, attribution.accounts, attribution.view
    )


def _own_keys(attribution: Attribution | None, viewer: Viewer) -> frozenset[ProcessKey]:
    """The viewer's processes on GPUs."""
    shares = attribution.processes if attribution else ()
    return frozenset(share.key for share in shares if share.key is not None and _is_own_process(share, viewer))


def _xid_programs(reading: XidProgramsReading, viewer: Viewer) -> XidProgramsReading:
    own = tuple(program for program in reading.programs if viewer.uid is not None and program.uid == viewer.uid)
    hidden = tuple((program.gpu_uuid, program.code) for program in reading.programs if program not in own)
    return XidProgramsReading(own, hidden)


def _processes(table: ProcessTable, own: frozenset[ProcessKey]) -> ProcessTable:
    rows = {key.pid: table.by_pid[key.pid] for key in own if key.pid in table.by_pid}
    return ProcessTable({pid: row for pid, row in rows.items() if row.key in own}, ())


def _command_lines(reading: CommandLineReading, own: frozenset[ProcessKey]) -> CommandLineReading:
    return CommandLineReading({key: reading.by_key[key] for key in own if key in reading.by_key})


def _is_own_process(share: ProcessShare, viewer: Viewer) -> bool:
    return viewer.uid is not None and share.workload.uid == viewer.uid


def _fold_shares(shares: Iterable[OwnerShare]) -> Iterable[OwnerShare]:
    by_gpu: dict[str, list[OwnerShare]] = {}
    for share in shares:
        by_gpu.setdefault(share.gpu_uuid, []).append(share)
    for uuid, rows in by_gpu.items():
        yield OwnerShare(
            uuid,
            rows[0].gpu_index,
            OTHERS,
            sum(row.processes for row in rows),
            sum_portions(row.memory for row in rows),
            sum_portions(row.sm for row in rows),
            sum_portions(row.power for row in rows),
        )


def _allocations(reading: AllocationReading, viewer: Viewer) -> AllocationReading | None:
    """None where the viewer has no name: a reading without rows would read as no slot held."""
    if viewer.user is None:
        return None
    return AllocationReading(
        reading.slots,
        tuple(allocation for allocation in reading.allocations if allocation.account.user == viewer.user),
        tuple(container for container in reading.containers if container.user == viewer.user),
        tuple(container for container in reading.unmanaged if container.user == viewer.user),
        reading.complete,
    )


def _ledger(reading: LedgerReading, allocations: AllocationReading | None, viewer: Viewer) -> LedgerReading:
    """Only the viewer's own quota; of others, how many are over theirs."""
    own = {user: quota for user, quota in reading.quotas.items() if user == viewer.user}
    states = quota_states(reading.quotas, allocations)
    over = sum(bool(state.exceeded) for state in states if state.user not in own)
    return LedgerReading(LedgerState(), None, own, hidden_over_quota=over)


def _slots(reading: SlotsReading, viewer: Viewer) -> SlotsReading:
    """The state of every slot; of the holders only the viewer's own, and how many others there are."""
    return SlotsReading(tuple(_slot(status, viewer) for status in reading.slots))


def _slot(status: SlotStatus, viewer: Viewer) -> SlotStatus:
    own = tuple(holder for holder in status.holders if viewer.user is not None and holder.account.user == viewer.user)
    return status._replace(holders=own, hidden_holders=len(status.holders) - len(own))


def _gpu_sharing(gpu: GpuSharing, names: Mapping[str, str]) -> GpuSharing:
    def rename(ids: Iterable[str]) -> tuple[str, ...]:
        return tuple(names.get(id) or pseudonym(id) for id in ids)

    return replace(
        gpu,
        running=rename(gpu.running),
        request_queue=rename(gpu.request_queue),
        wait_queue=rename(gpu.wait_queue),
    )


def _client(client: ClientSharing, viewer: Viewer) -> ClientSharing:
    if viewer.uid is not None and client.uid == viewer.uid:
        return client
    name = pseudonym(client.client_id)
    return client._replace(
        client_id=name,
        pod="",
        namespace="",
        pid=0,
        uid=-1,
        gid=-1,
        name=name,
        program=None if client.program is None else name,
        processes=(),
    )


def _turn(turn: Turn, viewer: Viewer) -> Turn:
    if viewer.uid is not None and turn.uid == viewer.uid:
        return turn
    name = pseudonym(turn.client_id)
    return turn._replace(id=f"{name}.{turn.id.rpartition('.')[2]}", client_id=name, label=name, uid=-1)


def pseudonym(client_id: str) -> str:
    """Stable for one client while the agent runs; it cannot be traced back to the client."""
    return f"other-{hmac.digest(_KEY, client_id.encode(), hashlib.sha256).hex()[:8]}"


def _accounts(accounts: AccountsReading, viewer: Viewer) -> AccountsReading | None:
    """None where the viewer has no name: accounts without rows would read as no use at all."""
    if viewer.user is None:
        return None
    return AccountsReading(
        {name: _period(period, viewer.user) for name, period in accounts.by_period.items()},
        {key: ns for key, ns in accounts.held_today_ns.items() if key.account == viewer.user},
        {key: billed for key, billed in accounts.months.items() if key.user == viewer.user},
        accounts.prices,
    )


def _period(period: PeriodAccounts, user: str) -> PeriodAccounts:
    """The periods of a reading are by user. The gaps are those of the node."""
    rows = {name: amounts for name, amounts in period.rows.items() if name == user}
    charges = {name: charge for name, charge in period.charges.items() if name == user}
    return PeriodAccounts(
        period.by, period.since_s, period.until_s, rows, gap_ns=period.gap_ns, charges=charges, prices=period.prices
    )


def _event_log(log: EventLogReading, viewer: Viewer) -> EventLogReading:
    """The viewer's own events, and events without a user (a pod has none), of these only details without names."""
    return EventLogReading(
        tuple(
            event if event.user else _nameless(event)
            for event in log.events
            if not event.user or event.user == viewer.user
        )
    )


def _nameless(event: Event) -> Event:
    details = {name: value for name, value in event.details.items() if name in _NAMELESS_DETAILS}
    return Event(event.wall_s, event.type, event.user, event.source, details, event.id)


def _alerts(reading: AlertsReading, viewer: Viewer) -> AlertsReading:
    return AlertsReading(tuple(_alert(alert, viewer) for alert in reading.alerts))


def _alert(alert: Alert, viewer: Viewer) -> Alert:
    """An alert that can concern another owner is shown without its text and without labels that can name the owner."""
    if alert.labels.get("user") == viewer.user is not None or set(alert.labels) <= _NAMELESS_LABELS:
        return alert
    labels = {name: value for name, value in alert.labels.items() if name in _NAMELESS_LABELS}
    return Alert(alert.fingerprint, alert.name, alert.severity, alert.state, alert.starts_wall_s, "", labels)
