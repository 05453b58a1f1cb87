"""The server of the client sockets: connections, descriptors, orders. One thread, one loop.

It decides nothing about turns: events go to the policy, and the turn loop carries out the actions.
"""

import asyncio
import contextlib
import errno
import logging
import os
import random
import resource
import socket
import traceback
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Final, NamedTuple

from gpucommons.base.peers import Admins, ConnectionCaps, Slots, is_local, process_of
from gpucommons.base.process_starts import ProcessStarts
from gpucommons.base.unix_listener import (
    ClientSocket,
    PeerCredentials,
    Reserve,
    close_all,
    group_id,
    listen_all,
    peer_credentials,
    peer_groups,
)
from gpucommons.config.scheduler import ParkingSettings, SchedulerSettings
from gpucommons.model.gpu import DeviceActivity
from gpucommons.model.leases import TrespassReport
from gpucommons.model.sharing import SharingReading
from gpucommons.model.words import SharingClass
from gpucommons.pauser.client import PauserSettings
from gpucommons.scheduler.parking.arrivals import GpuMemory
from gpucommons.scheduler.parking.host import THIS_HOST, ParkHost
from gpucommons.scheduler.parking.moves import RoomReader
from gpucommons.scheduler.parking.newcomers import NewcomerLookup
from gpucommons.scheduler.parking.parking import Parking
from gpucommons.scheduler.parking.suspended import BatchSystem
from gpucommons.scheduler.parking.values import RoomClaims, RoomNeed
from gpucommons.scheduler.policy.devices import DeviceTable, GpuFacts
from gpucommons.scheduler.policy.policy import Policy
from gpucommons.scheduler.policy.quotas import LimitLookup, QuotaRule, QuotaValues
from gpucommons.scheduler.policy.state import LONG_AGO, Client, client_name
from gpucommons.scheduler.programs.jobs import ProgramReading
from gpucommons.scheduler.programs.matching import ProgramRule
from gpucommons.scheduler.protocol.wire import ControlRequest, MessageType, Register
from gpucommons.scheduler.service.connection import Connection
from gpucommons.scheduler.service.enforcement import Enforcement, EnforcementTerms
from gpucommons.scheduler.service.gone_peers import GonePeers, PeerTrace
from gpucommons.scheduler.service.programs import Programs
from gpucommons.scheduler.service.state_reader import ProcessNames, StateReader
from gpucommons.scheduler.service.turn_loop import Measuring, PhaseMeter, TurnLoop

log = logging.getLogger(__name__)

MAX_CLIENTS = 4096
_ACCEPTS_PER_STEP: Final = 64
_ACCEPT_PAUSE_S: Final = 0.1
_OUT_OF_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})
_REFUSAL_LOG_INTERVAL_S: Final = 10.0
_MAX_WAITING_ORDERS: Final = 4096


@dataclass(frozen=True, slots=True)
class ProgramSharing:
    """How plain programs take part: their rules, the pauser that stops and resumes them, and how they are parked.

    `rooms` reads the free memory of GPUs; without it no program is parked. `enforcement`: programs on GPUs that are
    leased to others are paused. `host` is what parking asks about processes, `batch` the batch system whose suspended
    jobs are parked, and `lookup` what is known of programs that have just started.
    """

    pauser: PauserSettings
    rules: tuple[ProgramRule, ...] = ()
    parking: ParkingSettings = field(default_factory=ParkingSettings)
    rooms: RoomReader | None = None
    enforcement: EnforcementTerms | None = None
    host: ParkHost = THIS_HOST
    batch: BatchSystem | None = None
    lookup: NewcomerLookup = lambda process, command_line: None


class _Order(NamedTuple):
    """A frame of nvsharectl or xpusharectl. `allowed`: its sender is an admin."""

    sender: PeerCredentials
    message: ControlRequest
    trace: PeerTrace
    allowed: bool


class SchedulerServer:
    def __init__(
        self,
        settings: SchedulerSettings,
        rules: Sequence[QuotaRule] = (),
        *,
        sharing: ProgramSharing | None = None,
        meter: PhaseMeter | None = None,
        starts: ProcessStarts | None = None,
    ) -> None:
        """Without `sharing` no plain program takes part; without `meter` only utilisation is known.

        `starts` is the record of starts of processes, None where the agent may not have it. `stop` closes it.
        """
        self.settings = settings
        self.policy = Policy(settings)
        self.disconnects: Counter[str] = Counter()
        self._turns = TurnLoop(self.policy)
        self._devices = DeviceTable(self.policy, monotonic())
        self._limits = LimitLookup(rules)
        self._connections: dict[int, Connection] = {}
        self._unregistered: dict[Connection, None] = {}
        self._empty = asyncio.Event()
        self._empty.set()
        descriptors = _descriptor_cap()
        self._full = "descriptors" if descriptors < MAX_CLIENTS else "too_many_clients"
        self._slots = Slots(min(MAX_CLIENTS, descriptors))
        self._per_owner: Counter[str] = Counter()
        self._gone_peers = GonePeers(starts)
        self._orders: deque[_Order] = deque()
        self._order_task: asyncio.Task[None] | None = None
        self._admins = Admins(os.geteuid())
        self._caps = ConnectionCaps(
            {"uid": settings.max_connections_per_uid, "container": settings.max_connections_per_container}
        )
        # Increases with every order, connection and disconnection: a document made before is out of date.
        self.generation = 0
        self._refusal_logged_s = LONG_AGO
        self._errors_logged: set[tuple[str, str, int]] = set()
        self._listeners: dict[str, socket.socket] = {}
        self.programs: Programs | None = None
        self.parking: Parking | None = None
        self._lease_claims = RoomClaims()
        if sharing is not None:
            self.programs = Programs(
                settings, sharing.rules, self._turns, self._devices, self._limits, self._new_id, sharing.pauser
            )
            if sharing.enforcement is not None:
                self.programs.enforcement = Enforcement(self.programs.pauser, sharing.enforcement)
            if sharing.rooms is not None:
                self.parking = self.programs.parking = Parking(
                    sharing.parking,
                    self.programs.pauser,
                    sharing.rooms,
                    self.programs.end_turns,
                    self._room_claims,
                    sharing.pauser.backend,
                    sharing.host,
                    sharing.rules,
                    os.geteuid() if settings.share_programs == "own" else None,
                    sharing.batch,
                    self.programs.class_of,
                    sharing.lookup,
                )
        self._measuring = Measuring(self._turns, meter, self._turn_measured)
        self._reader = StateReader(
            self._turns, self._devices, self._limits, self.disconnects, self._count_connections, self.programs
        )
        self._reading_task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Serves the sockets; raises ListenError if one of them cannot be served."""
        self._admins = Admins(os.geteuid(), group_id(self.settings.admin_group))
        self._loop = asyncio.get_running_loop()
        self._turns.start(self._loop)
        self._listeners = listen_all(_client_sockets(self.settings))
        self._reserve = Reserve()
        for listener in self._listeners.values():
            self._loop.add_reader(listener.fileno(), self._accept, listener)
        self._measuring.start(self._loop)
        if self.programs is not None:
            await self.programs.start()
        if self.parking is not None:
            self.parking.start()
        self._reading_task = self._loop.create_task(self._reader.run())
        if self._listeners:
            log.info("scheduler serves %s", " and ".join(self._listeners))

    async def stop(self) -> None:
        if self._order_task is not None:
            await self._order_task
        if self.parking is not None:
            await self.parking.stop()
        if self.programs is not None:
            await self.programs.stop()
        self._measuring.stop()
        if self._reading_task is not None:
            self._reading_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reading_task
        if self._listeners:
            for listener in self._listeners.values():
                self._loop.remove_reader(listener.fileno())
            close_all(self._listeners)
            self._reserve.close()
        for connection in (*self._connections.values(), *self._unregistered):
            connection.close("shutdown")
        await self._empty.wait()
        self._gone_peers.close_record()
        self._turns.stop()

    # Connections

    def _accept(self, listener: socket.socket) -> None:
        """Accepts pending connections, a limited number at a time. A failure does not end the scheduler."""
        for _ in range(_ACCEPTS_PER_STEP):
            try:
                peer, _ = listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                self._cannot_accept(listener, error)
                return
            self._connected(peer)

    def _cannot_accept(self, listener: socket.socket, error: OSError) -> None:
        self.disconnects["descriptors" if error.errno in _OUT_OF_DESCRIPTORS else "accept_failed"] += 1
        if error.errno in _OUT_OF_DESCRIPTORS and self._reserve.turn_away(listener):
            return
        # Pending connections keep the listener readable: without a pause the loop would spin.
        log.warning("cannot accept connections: %s", error.strerror or error)
        self._loop.remove_reader(listener.fileno())
        self._loop.call_later(_ACCEPT_PAUSE_S, self._accept_again, listener)

    def _accept_again(self, listener: socket.socket) -> None:
        if listener in self._listeners.values():
            self._loop.add_reader(listener.fileno(), self._accept, listener)

    def _connected(self, peer: socket.socket) -> None:
        peer.setblocking(False)
        try:
            connection = Connection(self._turns, self, peer)
        except OSError:
            peer.close()
            self.disconnects["error"] += 1
            return
        if connection.credentials.uid == 0 and not connection.process.is_local and not connection.trace.has_ended:
            self._gone_peers.note_foreign(connection.trace, monotonic())
        self._unregistered[connection] = None
        self._per_owner[connection.owner] += 1
        self._empty.clear()
        self._loop.add_reader(peer.fileno(), connection.readable)
        over = self._caps.add(connection.accounts)
        if over:
            connection.close(f"too_many_of_{over}")
        elif not self._slots.takes(self._count_connections(), self._per_owner[connection.owner], connection.is_root):
            self._make_room(connection)

    def _make_room(self, newest: Connection) -> None:
        """Closes the connection that has been silent for longest; it may be the new one itself.

        An owner with many connections loses its own, and pushes out none that is about to register or to give an order.
        """
        is_new_owner = newest.is_root or self._slots.is_few(self._per_owner[newest.owner])
        silent = (
            self._unregistered
            if is_new_owner
            else (connection for connection in self._unregistered if connection.owner == newest.owner)
        )
        next(iter(silent)).close(self._full)

    def _count_connections(self) -> int:
        return len(self._connections) + len(self._unregistered)

    def closed(self, connection: Connection) -> None:
        """Closes the socket now; the policy gets the event when the loop is idle again."""
        self._loop.remove_reader(connection.socket.fileno())
        connection.socket.close()
        self._unregistered.pop(connection, None)
        self._caps.remove(connection.accounts)
        self._per_owner[connection.owner] -= 1
        if not self._per_owner[connection.owner]:
            del self._per_owner[connection.owner]
        self._loop.call_soon(self._disconnected, connection)

    def failed(self, connection: Connection, error: Exception) -> None:
        """An unexpected error: this connection is closed, the others continue."""
        self._log_once(error)
        connection.close("internal_error")

    def _log_once(self, error: Exception) -> None:
        """Logs an unexpected error with its traceback, once for each place that raises it."""
        frames = traceback.extract_tb(error.__traceback__)
        place = (type(error).__name__, frames[-1].filename, frames[-1].lineno or 0)
        if place not in self._errors_logged:
            self._errors_logged.add(place)
            log.error("unexpected error in a connection; it is closed (logged once)", exc_info=error)

    def _disconnected(self, connection: Connection) -> None:
        self.disconnects[connection.closing] += 1
        self.generation += 1
        client = connection.client
        if client is not None:
            if self.settings.debug:
                log.info("client %s disconnected: %s", client_name(client.id), connection.closing)
            del self._connections[client.id]
            client.peer = None
            try:
                self._remove_client(client, monotonic())
            except Exception as error:
                self._log_once(error)
        if not self._connections and not self._unregistered:
            self._empty.set()

    def _remove_client(self, client: Client, now: float) -> None:
        self._reader.keep_departed(client, now)
        self._limits.leave(client)
        actions = self.policy.disconnect(client, now)
        self._devices.forget_unused(client.gpu)
        self._turns.apply(actions, now)

    def register(self, connection: Connection, message: Register, now: float) -> Client | None:
        """None if the client is refused; its connection is closed then."""
        pid, uid, gid = connection.credentials
        process = process_of(connection.credentials)
        if self.policy.is_fenced(process, now):
            self._log_refusal(now, "refused a client of pid %d, uid %d: its turns were revoked twice", pid, uid)
            connection.close("fenced")
            return None
        if not self._slots.registers(len(self._connections) + 1, self._per_owner[connection.owner]):
            connection.close(self._full)
            return None
        client = Client(
            self._new_id(),
            self._devices.find_queue(message.gpu, now),
            version=message.version,
            pod=message.pod,
            namespace=message.namespace,
            pid=pid,
            uid=uid,
            gid=gid,
            gpu_name=message.gpu,
            process=process,
            owner=connection.owner,
        )
        if not self._devices.place(client):
            self.policy.refusals["unknown_gpu_name"] += 1
            text = "no GPU has the name %r of a client of pid %d, uid %d: it counts as unnamed"
            self._log_refusal(now, text, message.gpu, pid, uid)
        del self._unregistered[connection]
        connection.client = client
        client.peer = connection
        self._connections[client.id] = connection
        self.generation += 1
        if self.settings.debug:
            log.info(
                "client %s registered: %r/%r, pid %d, uid %d",
                client_name(client.id),
                client.namespace,
                client.pod,
                pid,
                uid,
            )
        limits = self._limits.enter(
            client,
            message.memory_limit_bytes,
            message.core_limit_percent,
            in_pod=connection.process.in_pod is not False,
        )
        self._turns.perform(self.policy.register(client, now, limits.core_percent, limits.memory_bytes))
        return client

    def _new_id(self) -> int:
        while True:
            id = random.getrandbits(64)
            if id and id not in self.policy.clients:
                return id

    # Orders

    def is_admin(self, peer: socket.socket, local: bool | None = None) -> bool:
        """Whether this peer may change the scheduler; a refusal is counted. `local` is whether it is in our namespaces,
        where that was read earlier."""
        allowed = self.includes_admin(peer, is_local(peer_credentials(peer).pid) if local is None else local)
        if not allowed:
            self.policy.refusals["control_not_admin"] += 1
        return allowed

    def includes_admin(self, peer: socket.socket, local: bool) -> bool:
        return self._admins.include(peer_credentials(peer), peer_groups(peer), local)

    def control_frame(self, connection: Connection, message: ControlRequest, now: float) -> None:
        """A frame of nvsharectl or xpusharectl. Orders are carried out in the order in which they came."""
        allowed = self.includes_admin(connection.socket, connection.process.is_local)
        order = _Order(connection.credentials, message, connection.trace, allowed)
        if self._order_task is not None or (connection.trace.has_ended and not allowed):
            if len(self._orders) >= _MAX_WAITING_ORDERS:
                self._orders.pop()
                self.policy.refusals["control_not_admin"] += 1
            self._orders.append(order)
            if self._order_task is None:
                self._order_task = self._loop.create_task(self._judge_orders())
        else:
            self._carry_out(order, now)

    async def _judge_orders(self) -> None:
        """Orders of peers that have ended: what is known of them is looked up on another thread, for all at once."""
        while self._orders:
            waiting, self._orders = self._orders, deque()
            judged = await asyncio.to_thread(lambda orders: list(map(self._judge, orders)), waiting)
            for order in judged:
                self._carry_out(order, monotonic())
        self._order_task = None

    def _judge(self, order: "_Order") -> "_Order":
        if order.allowed:
            return order
        try:
            return order._replace(allowed=self._gone_peers.was_local_root(order.sender, order.trace, monotonic()))
        except Exception as error:
            # The orders behind it must not wait for ever.
            self._log_once(error)
            return order

    def _carry_out(self, order: "_Order", now: float) -> None:
        uid, message = order.sender.uid, order.message
        if not order.allowed:
            self.policy.refusals["control_not_admin"] += 1
            sender = "not an admin, or in a container"
            if order.trace.has_ended:
                sender = (
                    "it has ended, and that it was root outside of containers cannot be shown; "
                    "`gpucommons scheduler` waits for its answer, and is not refused for this"
                )
            self._log_refusal(now, "refused %s from uid %d: %s", message.type.name, uid, sender)
            return
        log.info("%s by uid %d", message.type.name, uid)
        if message.quantum_s is not None:
            self.set_quantum(message.quantum_s)
        else:
            self.switch(message.type is MessageType.SCHED_ON)

    def _log_refusal(self, now: float, text: str, *values: object) -> None:
        """One line in a while: a peer may be refused as often as it likes."""
        if now - self._refusal_logged_s >= _REFUSAL_LOG_INTERVAL_S:
            self._refusal_logged_s = now
            log.warning(text, *values)

    def switch(self, on: bool) -> None:
        now = monotonic()
        self.generation += 1
        self._turns.apply(self.policy.switch(on, now), now)
        if self.programs is not None:
            self.programs.switched(now)

    def set_quantum(self, seconds: float | None) -> None:
        now = monotonic()
        self.generation += 1
        self._turns.apply(self.policy.set_quantum(seconds, now), now)

    def set_limit(self, target: str, quota: QuotaValues) -> int:
        """`target` is a client id, `namespace/pod`, a pod, or a name of programs such as `user:alice`; later clients of
        that name get the limit, too.

        Returns how many clients it means.
        """
        self._limits.set_limit(target, quota)
        self._limits_changed()
        return self.count_matching(target)

    def clear_limit(self, target: str) -> int | None:
        """Removes what was set for this target. Returns how many clients it means; None if nothing was set."""
        if not self._limits.clear_limit(target):
            return None
        self._limits_changed()
        return self.count_matching(target)

    def count_matching(self, target: str) -> int:
        clients = (client for client in self.policy.clients.values() if not client.is_program)
        connected = sum(target in self._limits.names(client) for client in clients)
        return connected + (0 if self.programs is None else self.programs.count_named(target))

    # Input of the agent

    def set_annotations(self, annotations: Mapping[tuple[str, str], QuotaValues]) -> None:
        """The limits in the annotations of pods, by (namespace, pod), where the pods of this node are known."""
        if annotations != self._limits.annotations or not self._limits.knows_pods:
            self._limits.annotations = dict(annotations)
            self._limits.knows_pods = True
            self._limits_changed()

    def _limits_changed(self) -> None:
        now = monotonic()
        self.generation += 1
        for connection in list(self._connections.values()):
            client = connection.client
            if client is None:
                continue
            limits = self._limits.decide(client)
            self._turns.perform(self.policy.limit_memory(client, limits.memory_bytes, now))
            self._turns.perform(self.policy.limit_core(client, limits.core_percent, now))
        if self.programs is not None:
            self.programs.limits_changed(now)
        self._turns.apply((), now)

    def update_gpus(self, facts: Sequence[GpuFacts]) -> None:
        """A reading of the devices, about once a second while the driver answers."""
        now = monotonic()
        self._turns.apply(self._devices.update(facts, now), now)
        self._measuring.check(now)

    def set_names(self, names: ProcessNames) -> None:
        """The names and pods of processes, and the names of users, as the agent last read them."""
        self._reader.names = names
        if self.parking is not None:
            self.parking.newcomers.user_names = names.users
        changed = False
        for connection in self._connections.values() if names.pods else ():
            client = connection.client
            pod = None if client is None else names.pod_of(client)
            if client is not None and pod is not None:
                changed = self._limits.identify(client, pod) or changed
        if changed:
            self._limits_changed()

    def update_programs(self, reading: ProgramReading) -> None:
        """A reading of the processes on the GPUs."""
        if self.programs is not None:
            self.programs.update(reading)

    def update_memory(self, memory: Mapping[str, GpuMemory]) -> None:
        """The memory of all GPUs, by UUID."""
        if self.parking is not None:
            self.parking.see_memory(memory)

    def update_trespassers(self, report: TrespassReport) -> None:
        """The processes on GPUs that are leased to others."""
        if self.programs is not None and self.programs.enforcement is not None:
            self.programs.enforcement.update(report)

    def set_mps_devices(self, devices: frozenset[str]) -> None:
        """The devices with leases under MPS."""
        if self.programs is not None:
            self.programs.mps_devices = devices

    def set_lease_claims(self, claims: RoomClaims) -> None:
        self._lease_claims = claims

    def _room_claims(self) -> RoomClaims:
        """Leases, and clients of nvshare that wait for more memory than they hold."""
        now, present = monotonic(), self._devices.present
        waiting = [
            RoomNeed(
                (client.device,),
                client.memory.need_bytes - (client.memory.nvml_bytes or 0),
                client.turn.wait_s,
                id=client_name(client.id),
                of_background=client.sharing_class is SharingClass.BACKGROUND,
            )
            for gpu in self.policy.gpus.values()
            for client in gpu.order.waiting.values()
            if not client.is_program and client.device in present and client.version != 1 and client.turn.wait_s < now
        ]
        return self._lease_claims._replace(needs=(*self._lease_claims.needs, *waiting))

    def _turn_measured(self, client: Client, activity: DeviceActivity, begin_s: float, end_s: float) -> None:
        if self.programs is not None and client.is_program:
            self.programs.turn_measured(client, activity, begin_s, end_s)

    # Output

    @property
    def reading(self) -> SharingReading:
        """The state, at most about a second old."""
        return self._reader.latest

    def read_now(self) -> SharingReading:
        return self._reader.read_now()

    async def read_in_steps(self) -> SharingReading:
        """As `read_now`, but hand-offs are served in between."""
        return await self._reader.read_in_steps()


def _client_sockets(settings: SchedulerSettings) -> Iterator[ClientSocket]:
    # Plain programs need no socket: without the right to create it, they are shared all the same.
    if settings.socket:
        yield ClientSocket(settings.socket, "scheduler.socket", required=settings.enabled)
    if settings.xpushare_socket:
        yield ClientSocket(settings.xpushare_socket, "scheduler.xpushare_socket", required=False)


def _descriptor_cap() -> int:
    """How many connections leave enough descriptors for the rest of the agent."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else max(8, soft - max(48, soft // 8))
