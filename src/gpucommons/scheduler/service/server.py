"""The Unix socket shell around the policy: connections, descriptors, timers. One thread, one loop.

It decides nothing about turns: events go to the policy, the actions that come back are carried out. What it
shows is `reading`, made anew every second in small steps so that no hand-off waits for it.
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
from time import monotonic
from typing import Final

from gpucommons.base.unix_listener import ClientSocket, Reserve, close_all, group_id, listen_all
from gpucommons.model.sharing import HANDOFF_BUCKETS, ClientSharing, SharingReading
from gpucommons.scheduler.policy.devices import DeviceTable, GpuFacts
from gpucommons.scheduler.policy.histogram import Histogram
from gpucommons.scheduler.policy.limit_book import LimitTable, names
from gpucommons.scheduler.policy.policy import Policy
from gpucommons.scheduler.policy.quotas import QuotaRule, QuotaValues
from gpucommons.scheduler.policy.settings import PolicySettings
from gpucommons.scheduler.policy.state import LONG_AGO, NEVER, Action, Client, Disconnect
from gpucommons.scheduler.protocol.wire import ControlRequest, MessageType, Register
from gpucommons.scheduler.service.connection import Connection
from gpucommons.scheduler.service.reading import NOBODY_AHEAD, Ahead, client_name, read_client, read_gpu

log = logging.getLogger(__name__)

LOCK_OK = MessageType.LOCK_OK
_LOCK_OK: Final = int(LOCK_OK)

_READ_BYTES: Final = 16 * 1024
_READING_INTERVAL_S: Final = 1.0
# Rows made between two looks at the sockets: a fraction of a millisecond of work.
_ROWS_PER_STEP: Final = 8
# Timing every hand-off would cost more than it tells.
_HANDOFF_TIMING_INTERVAL_S: Final = 0.01
_ACCEPTS_PER_STEP: Final = 64
_ACCEPT_PAUSE_S: Final = 0.1
_OUT_OF_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})
_MOST_DEPARTED: Final = 10_000
_REFUSAL_LOG_INTERVAL_S: Final = 10.0
# Timers of the loop have millisecond steps and may come early: aim a little late.
_TIMER_SLACK_S: Final = 0.0005


class SchedulerServer:
    def __init__(self, settings: PolicySettings, rules: Sequence[QuotaRule] = ()) -> None:
        self.settings = settings
        self.policy = Policy(settings)
        self.messages = [0] * (len(MessageType) + 1)
        self.handoffs = Histogram(HANDOFF_BUCKETS)
        self.disconnects: Counter[str] = Counter()
        self.armed_s = NEVER
        self.time_handoff_s = 0.0
        # What every connection reads into: one at a time does, and no bytes are kept in it.
        self.buffer = bytearray(_READ_BYTES)
        self.view = memoryview(self.buffer)
        self._devices = DeviceTable(self.policy, monotonic())
        self._limits = LimitTable(rules)
        self._connections: dict[int, Connection] = {}
        self._strangers: dict[Connection, None] = {}
        self._empty = asyncio.Event()
        self._empty.set()
        self._departed: deque[tuple[float, ClientSharing]] = deque(maxlen=_MOST_DEPARTED)
        self._descriptor_cap = _descriptor_cap()
        self._admin_gid: int | None = None
        self._refusal_logged_s = LONG_AGO
        self._errors_logged: set[tuple[str, str, int]] = set()
        self._listeners: dict[str, socket.socket] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._reader: asyncio.Task[None] | None = None
        self.reading = self.read_now()

    # Life

    async def start(self) -> None:
        """Serves the sockets; raises ListenError if one of them cannot be served."""
        self._admin_gid = group_id(self.settings.admin_group)
        self._loop = asyncio.get_running_loop()
        self._listeners = listen_all(_client_sockets(self.settings))
        self._reserve = Reserve()
        for listener in self._listeners.values():
            self._loop.add_reader(listener.fileno(), self._accept, listener)
        self._reader = self._loop.create_task(self._keep_reading())
        log.info("scheduler serves %s", " and ".join(self._listeners))

    async def stop(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reader
        if self._listeners:
            for listener in self._listeners.values():
                self._loop.remove_reader(listener.fileno())
            close_all(self._listeners)
            self._reserve.close()
        for connection in (*self._connections.values(), *self._strangers):
            connection.close("shutdown")
        await self._empty.wait()
        if self._timer is not None:
            self._timer.cancel()

    # Actions and time

    def apply(self, actions: Sequence[Action], now: float) -> None:
        """Carries out actions of an event that may have touched any GPU."""
        self.perform(actions)
        deadline = self.policy.next_deadline_s()
        if deadline < self.armed_s:
            self.arm(deadline, now)

    def grant(self, client: Client) -> None:
        """Sends LOCK_OK: what `perform` does most, and in a hand-over always."""
        peer = client.peer
        if peer is not None and not peer.closing:
            self.messages[_LOCK_OK] += 1
            peer.write(peer.lock_ok)

    def perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if action.message is LOCK_OK:
                self.grant(action.client)
                continue
            peer = action.client.peer
            if peer is None or peer.closing:
                continue
            if isinstance(action, Disconnect):
                peer.close("fenced")
            else:
                self.messages[action.message] += 1
                peer.send(action.message, action.value)

    def arm(self, deadline_s: float, now: float) -> None:
        """Wakes the policy at its deadline. A timer that is early enough already is left as it is."""
        if self._timer is not None:
            self._timer.cancel()
        self.armed_s = deadline_s
        self._timer = self._loop.call_later(max(0.0, deadline_s - now) + _TIMER_SLACK_S, self._wake)

    def time_handoff(self, now: float) -> None:
        """Notes how long it took from the bytes of a release to the next client's LOCK_OK, now and then."""
        done = monotonic()
        self.handoffs.observe(done - now)
        self.time_handoff_s = done + _HANDOFF_TIMING_INTERVAL_S

    def _wake(self) -> None:
        now = monotonic()
        self.armed_s = NEVER
        self._timer = None
        self.apply(self.policy.tick(now), now)

    # Connections

    def _accept(self, listener: socket.socket) -> None:
        """Accepts the connections that wait, a limited number at a time. No failure of it ends the scheduler."""
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
        # Whoever waits keeps the listener readable: without a pause we would spin.
        log.warning("cannot accept connections: %s", error.strerror or error)
        self._loop.remove_reader(listener.fileno())
        self._loop.call_later(_ACCEPT_PAUSE_S, self._accept_again, listener)

    def _accept_again(self, listener: socket.socket) -> None:
        if listener in self._listeners.values():
            self._loop.add_reader(listener.fileno(), self._accept, listener)

    def _connected(self, peer: socket.socket) -> None:
        peer.setblocking(False)
        try:
            connection = Connection(self, peer)
        except OSError:
            peer.close()
            self.disconnects["error"] += 1
            return
        self._strangers[connection] = None
        self._empty.clear()
        self._loop.add_reader(peer.fileno(), connection.readable)
        count = len(self._connections) + len(self._strangers)
        if count > min(self.settings.max_clients, self._descriptor_cap):
            scarce = self._descriptor_cap < self.settings.max_clients
            # The one that has said nothing for longest makes way; it may be the newcomer itself.
            next(iter(self._strangers)).close("descriptors" if scarce else "too_many_clients")

    def closed(self, connection: Connection) -> None:
        """Lets go of the socket now, and of the client as soon as the loop is back."""
        self._loop.remove_reader(connection.socket.fileno())
        connection.socket.close()
        self._strangers.pop(connection, None)
        self._loop.call_soon(self._disconnected, connection)

    def failed(self, connection: Connection, error: Exception) -> None:
        """Handling this connection raised what no rule foresees: it is closed, and the others go on."""
        self._log_once(error)
        connection.close("internal_error")

    def _log_once(self, error: Exception) -> None:
        """An unexpected error is logged with its traceback once for each place that raises it."""
        frames = traceback.extract_tb(error.__traceback__)
        place = (type(error).__name__, frames[-1].filename, frames[-1].lineno or 0)
        if place not in self._errors_logged:
            self._errors_logged.add(place)
            log.error("unexpected error in a connection; it is closed (logged once)", exc_info=error)

    def _disconnected(self, connection: Connection) -> None:
        self.disconnects[connection.closing] += 1
        client = connection.client
        if client is not None:
            if self.settings.debug:
                log.info("client %s left: %s", client_name(client.id), connection.closing)
            del self._connections[client.id]
            client.peer = None
            try:
                self._left(client, monotonic())
            except Exception as error:
                self._log_once(error)
        if not self._connections and not self._strangers:
            self._empty.set()

    def _left(self, client: Client, now: float) -> None:
        self._remember(client, now)
        self._limits.leave(client)
        actions = self.policy.disconnect(client, now)
        self._devices.forget_unused(client.gpu)
        self.apply(actions, now)

    def register(self, connection: Connection, message: Register, now: float) -> Client:
        pid, uid, gid = connection.credentials
        client = Client(
            self._new_id(),
            self._devices.called(message.gpu, now),
            version=message.version,
            pod=message.pod,
            namespace=message.namespace,
            pid=pid,
            uid=uid,
            gid=gid,
            gpu_name=message.gpu,
            now_s=now,
        )
        del self._strangers[connection]
        connection.client = client
        client.peer = connection
        self._connections[client.id] = connection
        if self.settings.debug:
            log.info(
                "client %s came: %r/%r, pid %d, uid %d", client_name(client.id), client.namespace, client.pod, pid, uid
            )
        limits = self._limits.enter(client, message.memory_limit_bytes, message.core_limit_percent)
        self.perform(self.policy.register(client, now, limits.core_percent, limits.memory_bytes))
        return client

    def control_frame(self, connection: Connection, message: ControlRequest, now: float) -> None:
        """nvsharectl's frames: obeyed only from root, our own uid, or a member of the admin group."""
        if not self._is_admin(connection):
            self.policy.refusals["control_not_admin"] += 1
            if now - self._refusal_logged_s >= _REFUSAL_LOG_INTERVAL_S:
                self._refusal_logged_s = now
                log.warning("refused %s of uid %d: not an admin", message.type.name, connection.credentials.uid)
            return
        log.info("%s by uid %d", message.type.name, connection.credentials.uid)
        if message.quantum_s is not None:
            self.set_quantum(message.quantum_s)
        else:
            self.switch(message.type is MessageType.SCHED_ON)

    def _is_admin(self, connection: Connection) -> bool:
        _, uid, gid = connection.credentials
        if uid in (0, os.geteuid()):
            return True
        return self._admin_gid is not None and (gid == self._admin_gid or self._admin_gid in connection.groups())

    def _new_id(self) -> int:
        while True:
            id = random.getrandbits(64)
            if id and id not in self._connections:
                return id

    # Orders and news

    def switch(self, on: bool) -> None:
        now = monotonic()
        self.apply(self.policy.switch(on, now), now)

    def set_quantum(self, seconds: float) -> None:
        now = monotonic()
        self.apply(self.policy.set_quantum(seconds, now), now)

    def set_limit(self, target: str, quota: QuotaValues) -> None:
        """`target` is a client id, `namespace/pod` or a pod. Later clients of that pod get it too."""
        self._limits.set_limit(target, quota)
        self._limits_changed()

    def set_annotations(self, annotations: Mapping[tuple[str, str], QuotaValues]) -> None:
        """What the annotations of pods say now, by (namespace, pod)."""
        if annotations != self._limits.annotations:
            self._limits.annotations = dict(annotations)
            self._limits_changed()

    def set_rules(self, rules: Sequence[QuotaRule]) -> None:
        """The config file's rules, after a reload."""
        self._limits.rules = tuple(rules)
        self._limits_changed()

    def _limits_changed(self) -> None:
        now = monotonic()
        for client in self.policy.clients.values():
            limits = self._limits.decide(client)
            self.perform(self.policy.limit_memory(client, limits.memory_bytes, now))
            self.perform(self.policy.limit_core(client, limits.core_percent, now))
        self.apply((), now)

    def update_gpus(self, facts: Sequence[GpuFacts]) -> None:
        """A reading of the devices, about once a second while the driver answers."""
        now = monotonic()
        self.apply(self._devices.update(facts, now), now)

    # What it shows

    def matching(self, target: str) -> list[Client]:
        """The clients that a client id, `namespace/pod` or pod name means."""
        return [client for client in self.policy.clients.values() if target in names(client)]

    def read_now(self) -> SharingReading:
        """The whole state at this instant, in one go."""
        return self._assemble(list(self._rows()))

    async def _keep_reading(self) -> None:
        while True:
            await asyncio.sleep(_READING_INTERVAL_S)
            try:
                self.reading = await self._read_in_steps()
            except Exception:
                log.exception("the scheduler's state could not be read; the last reading stays")

    async def _read_in_steps(self) -> SharingReading:
        rows: list[ClientSharing] = []
        for _ in self._counting():
            await asyncio.sleep(0)
        for row in self._rows():
            rows.append(row)
            if len(rows) % _ROWS_PER_STEP == 0:
                await asyncio.sleep(0)
        return self._assemble(rows)

    def _counting(self) -> Iterator[None]:
        """Counts what piled up for the histograms, a part at a time."""
        for gpu in list(self.policy.gpus.values()):
            while gpu.count_some():
                yield

    def _rows(self) -> Iterator[ClientSharing]:
        """One row per client. Clients may come and go between two of them."""
        for gpu in list(self.policy.gpus.values()):
            # In the order of the queue, for how long one waits follows from the one before.
            queue = list(gpu.waiting.values())
            others = [client for client in gpu.clients.values() if client.id not in gpu.waiting]
            ahead = NOBODY_AHEAD
            for client in queue:
                row = self._row(client, ahead)
                yield row
                ahead = Ahead(ahead.number + 1, client, None if row.wait is None else row.wait.expected_s)
            for client in others:
                yield self._row(client, NOBODY_AHEAD)

    def _row(self, client: Client, ahead: Ahead) -> ClientSharing:
        now = monotonic()
        client.gpu.clock.advance(now)
        return read_client(self.policy, client, self._limits.of(client), ahead, now)

    def _remember(self, client: Client, now: float) -> None:
        """Keeps the last row of a client that leaves, where the settings ask for it."""
        if self.settings.metrics_stale_ttl_s > 0:
            row = self._row(client, NOBODY_AHEAD)
            self._departed.append((now + self.settings.metrics_stale_ttl_s, row))

    def _assemble(self, rows: list[ClientSharing]) -> SharingReading:
        now = monotonic()
        present = self._devices.present
        while self._departed and self._departed[0][0] <= now:
            self._departed.popleft()
        gpus = list(self.policy.gpus.values())
        for gpu in gpus:
            gpu.clock.advance(now)
        return SharingReading(
            on=self.policy.on,
            mode=self.policy.mode.value,
            fixed_quantum_s=self.policy.operator_quantum_s,
            gpus=tuple(read_gpu(self.policy, gpu, gpu.key in present, now) for gpu in gpus),
            clients=tuple(rows),
            departed=tuple(row for _, row in self._departed),
            messages={kind.name: self.messages[kind] for kind in MessageType},
            disconnects=dict(self.disconnects),
            refusals=dict(self.policy.refusals),
            handoff_seconds=self.handoffs.reading(),
            window_s=self.settings.compute_window_s,
            debug_labels=self.settings.metrics_debug_labels,
            socket_path=self.settings.socket_path,
            connections=len(self._connections) + len(self._strangers),
        )


def _client_sockets(settings: PolicySettings) -> Iterator[ClientSocket]:
    yield ClientSocket(settings.socket_path, "scheduler.socket")
    if settings.xpushare_socket_path:
        yield ClientSocket(settings.xpushare_socket_path, "scheduler.xpushare_socket", required=False)


def _descriptor_cap() -> int:
    """How many connections leave descriptors enough for the rest of the agent."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else max(8, soft - max(48, soft // 8))
