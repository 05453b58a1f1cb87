"""Plain programs as clients of the policy: which take part, under which limits, paused and resumed.

A program's peer carries out what the policy sends it, with the pauser; the rest follows the programs as they come and
go.
"""

import asyncio
import logging
import os
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Final, NamedTuple

from gpucommons.config.scheduler import SchedulerSettings
from gpucommons.model.gpu import DeviceActivity
from gpucommons.model.process_identity import ProcessKey
from gpucommons.model.words import SharingClass
from gpucommons.pauser.backend import Code
from gpucommons.pauser.client import (
    LOCK_TIMEOUT_GROWTH,
    LOCK_TIMEOUT_MS,
    MAX_LOCK_TIMEOUT_GROWTHS,
    Pauser,
    PauserSettings,
)
from gpucommons.pauser.protocol import Notice, NoticeKind, Reply
from gpucommons.scheduler.corun.coruns import Way
from gpucommons.scheduler.parking.parking import Parking
from gpucommons.scheduler.policy import quotas
from gpucommons.scheduler.policy.devices import DeviceTable
from gpucommons.scheduler.policy.quotas import ClientLimits, LimitLookup
from gpucommons.scheduler.policy.state import (
    PROGRAM,
    Action,
    Client,
    ClientStanding,
    GpuQueue,
    client_name,
)
from gpucommons.scheduler.programs.exemptions import Circumstances, Exempt, Exemption, Refusal, ShareScope, divide
from gpucommons.scheduler.programs.jobs import Program, ProgramActivity, ProgramReading
from gpucommons.scheduler.programs.joining import ProgramRoster, ProgramTurn, linked_gpus
from gpucommons.scheduler.programs.matching import (
    PidTargets,
    ProgramRule,
    class_of_label,
    class_of_lease,
    names,
    pod_of,
    quota_of,
)
from gpucommons.scheduler.protocol.wire import MessageType
from gpucommons.scheduler.service.classes import Grouped, Role, roles
from gpucommons.scheduler.service.enforcement import Enforcement
from gpucommons.scheduler.service.turn_loop import TurnLoop

# One plain program as a client: carries out what the policy sends it, with the pauser. It decides nothing.
#
# The policy's LOCK_OK resumes the program, DROP_LOCK pauses it. Both take time, and the policy may change its mind
# meanwhile: one task at a time brings the program to the state that was requested last. Whatever takes longer than
# `HANGS_AFTER_S` is reported to the policy, so that no other program waits for it. A program that its user has stopped,
# or for which a call of the driver hangs, takes no turns until the pauser reports that it goes on. If only some of its
# processes are stopped, the others take turns: a stopped one submits no work, and must not free the rest of its job.

# A program that could not be paused runs for so long before the next attempt. What time it needed is kept for the next
# turns: an attempt that fails lets it run on while others wait.
_AGAIN_S: Final = 0.25
# Whatever takes longer than this keeps no other program waiting.
HANGS_AFTER_S: Final = 0.3


class HeldUp(NamedTuple):
    """Why a program takes no turns for a while, in words: its user has stopped it, or a call for it hangs."""

    is_stopped: bool
    sentence: str


class ProgramPeer:
    """`processes` are those of the program, each with the device that it is on."""

    lock_ok: Final = b""
    closing: Final = ""

    def __init__(self, turns: TurnLoop, pauser: Pauser, client: Client) -> None:
        self.client = client
        self.processes: Mapping[ProcessKey, str] = {}
        self._turns = turns
        self._pauser = pauser
        self._pause = False
        self._failures = 0
        self._locked: set[ProcessKey] = set()
        self._held_up: dict[ProcessKey, HeldUp] = {}
        # The present task has taken long; that, or a call that hangs, is known to the policy.
        self._is_slow = False
        self._hangs = False
        self._task: asyncio.Task[None] | None = None
        self._requests: set[asyncio.Task[Reply]] = set()

    # The policy's messages

    def write(self, frame: bytes) -> None:
        """LOCK_OK, the only message that is written without `send`."""
        self._request(pause=False)

    def send(self, message: MessageType, value: int) -> None:
        if message is MessageType.DROP_LOCK:
            self._request(pause=True)
        elif message is MessageType.SCHED_OFF:
            self._request(pause=False)

    def close(self, reason: str) -> None:
        """A program has no connection that could be closed."""

    # The server's

    def run_freely(self) -> None:
        """It no longer takes part."""
        self._request(pause=False)

    def set_processes(self, processes: Mapping[ProcessKey, str]) -> None:
        """A process that began while the program is paused is paused, too."""
        if processes != self.processes:
            before, self.processes = self.processes, dict(processes)
            for process in self.processes.keys() - before.keys():
                self._ask(self._pauser.watch(process))
            for process in before.keys() - self.processes.keys():
                self._ask(self._pauser.unwatch(process))
                self._held_up.pop(process, None)
            self._report_hang()
            if self.held_up is not None:
                self._leave_turns()
            elif self._pause:
                self._request(pause=True)

    def leave(self) -> None:
        """It no longer takes part, and runs freely. The policy is about to forget it."""
        self.run_freely()
        for process in self.processes:
            self._ask(self._pauser.unwatch(process))

    @property
    def held_up(self) -> HeldUp | None:
        """Why it takes no turns: all of its processes are stopped, or a call for one of them hangs."""
        hangs = any(not held_up.is_stopped for held_up in self._held_up.values())
        return max(self._held_up.values(), default=None) if hangs or not self._going_on else None

    @property
    def _going_on(self) -> AbstractSet[ProcessKey]:
        return self.processes.keys() - self._held_up.keys()

    def hear(self, notice: Notice) -> None:
        """What the pauser reports of one of its processes."""
        process = notice.process
        if notice.kind is NoticeKind.RESUMED:
            self._resumed(process)
            return
        if notice.kind is NoticeKind.GOES_ON:
            self._held_up.pop(process, None)
            if self._pause:
                self._request(pause=True)
        else:
            self._held_up[process] = HeldUp(notice.kind is NoticeKind.STOPPED, notice.reason)
            # The pauser resumes it as soon as that is possible.
            self._locked.discard(process)
            if self.held_up is not None:
                self._leave_turns()
        self._report_hang()

    def _leave_turns(self) -> None:
        self._request(pause=False)
        now = monotonic()
        self._turns.apply(self._turns.policy.withdraw(self.client, now), now)

    def _report_hang(self) -> None:
        """The policy hears whether others must not wait for this program."""
        hangs = self._is_slow or any(not held_up.is_stopped for held_up in self._held_up.values())
        if hangs == self._hangs:
            return
        self._hangs = hangs
        now = monotonic()
        policy = self._turns.policy
        self._turns.apply((policy.hang if hangs else policy.record_return)(self.client, now), now)

    def _resumed(self, process: ProcessKey) -> None:
        """The pauser resumed it on its own: it was paused for too long."""
        if process not in self._locked:
            return
        self._locked.discard(process)
        self._request(pause=False)
        now = monotonic()
        rest_s = self._pauser.max_pause_s
        self._turns.apply(self._turns.policy.record_resume(self.client, now + rest_s, now), now)

    def forget(self) -> None:
        """The pauser has ended: the next one resumes what this one had paused, if its watchdog has not."""
        self._locked.clear()
        self._held_up.clear()
        self._pause = False

    async def settle(self) -> None:
        while self._task is not None:
            await asyncio.wait({self._task})

    def _ask(self, request: Coroutine[None, None, Reply]) -> None:
        """Of its answer nothing depends: a pauser that is lost has no programs to watch."""
        task = asyncio.get_running_loop().create_task(request)
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)

    def _request(self, *, pause: bool) -> None:
        self._pause = pause
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._bring_about())
            self._task.add_done_callback(asyncio.Task.result)

    async def _bring_about(self) -> None:
        try:
            while not await self._try():
                pass
        finally:
            # Here, and not in a callback of the task: a request that came before the callback would be lost.
            self._task = None

    async def _try(self) -> bool:
        """Whether the program is in the state that was requested last."""
        pause = self._pause
        timer = asyncio.get_running_loop().call_later(HANGS_AFTER_S, self._takes_long)
        try:
            if pause:
                await self._lock_all()
            else:
                await self._unlock_all()
        finally:
            timer.cancel()
            self._is_slow = False
            self._report_hang()
        return pause == self._pause and (self._locked >= self._going_on if pause else not self._locked)

    def _takes_long(self) -> None:
        self._is_slow = True
        self._report_hang()

    async def _lock_all(self) -> None:
        running = {process: self.processes[process] for process in self._going_on - self._locked}
        timeout_ms = LOCK_TIMEOUT_MS * LOCK_TIMEOUT_GROWTH**self._failures
        begun_s = monotonic()
        locks = await asyncio.gather(*(self._lock_one(*place, timeout_ms) for place in running.items()))
        if not self._pause:
            # The policy has changed its mind, or the program is held up and has left the turns.
            return
        now = monotonic()
        # One that was stopped meanwhile does not count.
        if any(process in self._going_on for process, is_locked in zip(running, locks, strict=True) if not is_locked):
            self._pause = False
            self._failures = min(self._failures + 1, MAX_LOCK_TIMEOUT_GROWTHS)
            await self._unlock_all()
            now = monotonic()
            actions: Sequence[Action] = self._turns.policy.record_pause_failure(self.client, now + _AGAIN_S, now)
        else:
            if now - begun_s < timeout_ms / 1000 / LOCK_TIMEOUT_GROWTH:
                self._failures = max(0, self._failures - 1)
            actions = self._turns.policy.record_pause(self.client, now)
        self._turns.apply(actions, now)

    async def _lock_one(self, process: ProcessKey, device: str, timeout_ms: int) -> bool:
        reply = await self._pauser.lock(process, timeout_ms=timeout_ms, gpu=device)
        is_locked = reply.failure is None or reply.failure.code == Code.GONE
        if is_locked:
            self._locked.add(process)
        return is_locked

    async def _unlock_all(self) -> None:
        await asyncio.gather(*(self._pauser.resume(self._locked, process) for process in tuple(self._locked)))


# Plain programs as clients of the policy: which take part, under which limits, paused and resumed by the pauser.
#
# Readings come once a second. While the pauser is not available no program takes part: all run freely.

log = logging.getLogger(__name__)

NewId = Callable[[], int]
_SETTLE_S: Final = 0.5
_PAUSED: Final = frozenset({ClientStanding.WAITING, ClientStanding.THROTTLED})
_REQUESTS_WITHIN_S: Final = 30.0


@dataclass(slots=True)
class _Member:
    program: Program
    client: Client
    peer: ProgramPeer
    # Whether it takes part in turns, unless it is held up.
    joined: bool = False

    def ran_since(self, begin_s: float) -> bool:
        """Whether it was not paused since then, and is not about to be."""
        client = self.client
        return (
            client.standing is ClientStanding.RUNNING and client.turn.begun_s <= begin_s and client.turn.drop_s is None
        )

    @property
    def takes_turns(self) -> bool:
        return _takes_turns_on(self.client.gpu)


class Programs:
    """Call everything from the scheduler's loop. `exempt` are the programs that are left alone, with the reason."""

    def __init__(
        self,
        settings: SchedulerSettings,
        rules: Sequence[ProgramRule],
        turns: TurnLoop,
        devices: DeviceTable,
        limits: LimitLookup,
        new_id: NewId,
        pauser: PauserSettings,
    ) -> None:
        self.exempt: tuple[Exemption, ...] = ()
        self._scope = ShareScope(settings.share_programs)
        self._rules = tuple(rules)
        self._turns = turns
        self._policy = turns.policy
        self._devices = devices
        self._limits = limits
        self._new_id = new_id
        self._pauser = Pauser(pauser, on_notice=self._hear, on_change=self._pauser_changed)
        self._roster = ProgramRoster()
        self._pid_targets = PidTargets()
        # Set by the server: programs that are parked take no part.
        self.parking: Parking | None = None
        # Set by the server: programs on GPUs that are leased to others take no part, and are paused.
        self.enforcement: Enforcement | None = None
        # Set by the server: the devices with leases under MPS.
        self.mps_devices: AbstractSet[str] = frozenset()
        self._members: dict[str, _Member] = {}
        self._by_client: dict[int, _Member] = {}
        self._stopping = False
        # What each process is in the groups of the pauser, and requests for that under way.
        self._roles: dict[ProcessKey, frozenset[Role]] = {}
        self._requests: set[asyncio.Task[Reply]] = set()
        # Programs come and go: the next reading should not wait for its time.
        self.reads_soon = False
        # When the last reading was taken in.
        self._read_s = float("-inf")
        # A pauser was lost while programs were paused, and it is not known whether they run again.
        self._is_unsure = False

    async def start(self) -> None:
        await self._pauser.start()

    async def stop(self) -> None:
        """Every program runs again."""
        self._stopping = True
        if self.enforcement is not None:
            await self.enforcement.stop()
        now = monotonic()
        members = list(self._members.values())
        for key in list(self._members):
            self._remove(key, now)
        # A lock that hangs is left to the pauser, which resumes everything that is paused.
        with suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE_S):
                for member in members:
                    await member.peer.settle()
        await self._pauser.stop()

    @property
    def pauser(self) -> Pauser:
        return self._pauser

    def program_of(self, client: Client) -> Program | None:
        member = self._by_client.get(client.id)
        return None if member is None else member.program

    def held_up(self, client: Client) -> HeldUp | None:
        """Why a program takes no turns for a while."""
        member = self._by_client.get(client.id)
        return None if member is None else member.peer.held_up

    # Readings

    def update(self, reading: ProgramReading) -> None:
        """One reading of the processes on all GPUs."""
        if self._stopping:
            return
        now = monotonic()
        self._forget_limits_of_ended(reading)
        if self.parking is not None:
            reading = self.parking.without_parked(reading)
        nvshare_pids = {client.pid for client in self._policy.clients.values() if _takes_turns(client, now)}
        trespassers: Iterable[Exemption] = ()
        if self.enforcement is not None:
            self.enforcement.see(reading.processes, nvshare_pids)
            trespassers = self.enforcement.exemptions()
            reading = self.enforcement.without_paused(reading)
        around = Circumstances(
            self._scope,
            os.geteuid(),
            agent_pids=self._pauser.own_pids,
            nvshare_pids=nvshare_pids,
            obstacle=self._pauser.reason,
            refused=self._refused(reading, now),
            rules=self._rules,
            mps_devices=self.mps_devices,
        )
        division = divide(reading.processes, around, now)
        self.exempt = (*division.exempt, *trespassers)
        programs = {program.key: program for program in division.programs}
        ran = {key for key, member in self._members.items() if member.ran_since(self._read_s)}
        self._read_s = now
        contested = {device for gpu in self._policy.gpus.values() if _is_contested(gpu, now) for device in gpu.devices}
        standings = self._roster.see(programs.values(), reading.as_of_s, now, reading.unlisted, ran, contested)
        several = [group.devices for group in linked_gpus(programs.values()) if len(group.devices) > 1]
        self._turns.apply(self._devices.link(several, now), now)
        for key, member in list(self._members.items()):
            if key not in standings:
                self._remove(key, now)
            elif key in programs and programs[key].has_reused_pid_of(member.program):
                self._remove(key, now)
                self._limits.clear_limit(key)
        for key, program in programs.items():
            self._update(key, program, standings[key].joined, now)
        self._sample_use(reading, now)
        self._name_roles(now)
        self.reads_soon = any(gpu.phases.coruns.has_passing_programs(now) for gpu in self._policy.gpus.values())
        if self.parking is not None:
            paused = {key for key, member in self._members.items() if member.client.standing in _PAUSED}
            in_turns = {key for key, member in self._members.items() if member.takes_turns}
            classes = {key: member.client.sharing_class for key, member in self._members.items()}
            self.parking.see(division.programs, division.exempt, paused, in_turns, reading.as_of_s, classes)

    def _sample_use(self, reading: ProgramReading, now: float) -> None:
        """What the processes of each client used of its GPU since the last reading."""
        members = {key: member for member in self._members.values() for key in member.program.process_keys}
        connected = {client.pid: client for client in self._policy.clients.values() if not client.is_program}
        unpaused_owners = {
            process: exemption.program.counts_for
            for exemption in self.exempt
            if exemption.why is Exempt.REFUSED
            for process in exemption.program.process_keys
        }
        ratios: dict[str, dict[int, float]] = {}
        unpaused: dict[str, dict[str, float]] = {}
        totals = dict(reading.busy)
        for process in reading.processes:
            member = None if process.key is None else members.get(process.key)
            client = connected.get(process.pid) if member is None else member.client
            for use in process.uses:
                if use.busy_ratio is None:
                    continue
                if client is None:
                    # It takes no part.
                    totals[use.device] = totals.get(use.device, 0.0) - use.busy_ratio
                    if process.key is not None and (owner := unpaused_owners.get(process.key)) is not None:
                        of_device = unpaused.setdefault(use.device, {})
                        of_device[owner] = of_device.get(owner, 0.0) + use.busy_ratio
                else:
                    of_gpu = ratios.setdefault(client.gpu.key, {})
                    # GPUs that a program links are one queue: its part of that is the mean of its parts of each.
                    part = use.busy_ratio / len(client.gpu.devices)
                    of_gpu[client.id] = of_gpu.get(client.id, 0.0) + part
        for gpu_key, of_gpu in ratios.items():
            gpu = self._policy.gpus[gpu_key]
            total = sum(totals.get(device, 0.0) for device in gpu.devices) / len(gpu.devices)
            by_owner: defaultdict[str, float] = defaultdict(float)
            for device in gpu.devices:
                for owner, ratio in unpaused.get(device, {}).items():
                    by_owner[owner] += ratio / len(gpu.devices)
            self._policy.sample_use(gpu, of_gpu, total, by_owner, now)

    def _name_roles(self, now: float) -> None:
        """The pauser learns which programs it holds back while others work."""
        members = self._members.values()
        named_roles = roles((Grouped(member.client, member.peer.processes.keys()) for member in members), now)
        for process in self._roles.keys() | named_roles.keys():
            before, after = self._roles.get(process, frozenset()), named_roles.get(process, frozenset())
            if before == after:
                continue
            if {role.group for role in before} - {role.group for role in after}:
                self._ask(self._pauser.leave_groups(process))
                before = frozenset()
            for group, share_percent in after - before:
                named = (
                    self._pauser.yield_to(process, group)
                    if share_percent is None
                    else self._pauser.guard(process, group, share_percent)
                )
                self._ask(named)
        self._roles = dict(named_roles)

    def _ask(self, request: Coroutine[None, None, Reply]) -> None:
        """Of its answer nothing depends: a pauser that is lost holds no program back."""
        task = asyncio.get_running_loop().create_task(request)
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)

    async def end_turns(self, key: str) -> None:
        """It is to be parked: it leaves the turns, and runs when this returns."""
        member = self._members.get(key)
        if member is not None:
            self._remove(key, monotonic())
            await member.peer.settle()

    def _update(self, key: str, program: Program, joined: bool, now: float) -> None:
        member = self._members.get(key)
        is_known = member is not None and program.process_keys <= member.program.process_keys
        if member is None:
            member = self._add(key, program, now)
        if not is_known:
            self._policy.record_growth(member.client, now)
        member.program = program
        client = member.client
        client.gpu_share = program.gpu_share
        member.peer.set_processes({process: place for place, keys in program.processes_on.items() for process in keys})
        memory = [use.memory_bytes for use in program.uses.values()]
        total_bytes = None if None in memory else sum(amount or 0 for amount in memory)
        self._turns.perform(self._policy.measure_memory(client, total_bytes, None, now))
        self._apply_limits(member, now)
        member.joined = joined
        if joined and client.standing is ClientStanding.IDLE and member.peer.held_up is None:
            self._turns.perform(self._policy.join(client, now))
        elif not joined:
            self._rest(member, now)
        self._turns.apply((), now)

    def _add(self, key: str, program: Program, now: float) -> _Member:
        pod = pod_of(program)
        client = Client(
            self._new_id(),
            self._devices.find_queue(program.devices[0], now),
            version=PROGRAM,
            pod=pod[1] if pod else "none",
            namespace=pod[0] if pod else "none",
            pid=program.first.pid,
            uid=program.uid if program.uid is not None else -1,
            gpu_name=program.devices[0],
            owner=program.counts_for,
        )
        client.device = program.devices[0]
        peer = ProgramPeer(self._turns, self._pauser, client)
        client.peer = peer
        member = self._members[key] = self._by_client[client.id] = _Member(program, client, peer)
        limits = self._look_up(member)
        self._limits.put(client, limits)
        client.sharing_class = limits.sharing_class
        self._turns.perform(self._policy.register(client, now, limits.core_percent))
        return member

    def _remove(self, key: str, now: float) -> None:
        member = self._members.pop(key)
        del self._by_client[member.client.id]
        member.peer.leave()
        self._limits.leave(member.client)
        actions = self._policy.disconnect(member.client, now)
        self._devices.forget_unused(member.client.gpu)
        self._turns.apply(actions, now)

    def _rest(self, member: _Member, now: float) -> None:
        if member.client.standing is not ClientStanding.IDLE:
            member.peer.run_freely()
            self._turns.apply(self._policy.withdraw(member.client, now), now)

    def _refused(self, reading: ProgramReading, now: float) -> Mapping[ProcessKey, Refusal]:
        keys = (process.key for process in reading.processes if process.key is not None)
        refusals = self._pauser.refusals
        left = ((key, refusals.remaining_s(key, now)) for key in keys)
        return {key: Refusal(refusals.reason(key), now + left_s) for key, left_s in left if left_s > 0}

    # Turns

    def turn_measured(self, client: Client, activity: DeviceActivity, begin_s: float, end_s: float) -> None:
        """A program ran alone. One that was idle while others waited rests."""
        key = next((key for key, member in self._members.items() if member.client is client), None)
        if key is None:
            return
        others_waited = bool(client.gpu.order.waiting)
        did = ProgramActivity.IDLE if activity.is_idle else ProgramActivity.ACTIVE
        standing = self._roster.end_turn(key, ProgramTurn(begin_s, end_s, did, others_waited))
        if standing is not None and not standing.joined:
            self._rest(self._members[key], monotonic())

    def _hear(self, notice: Notice) -> None:
        if self.parking is not None:
            self.parking.hear(notice)
        if self.enforcement is not None:
            self.enforcement.hear(notice)
        if notice.kind in (NoticeKind.HOLDS_BACK, NoticeKind.HELD_BACK):
            self._hear_of_hold_back(notice)
            return
        for member in self._members.values():
            if notice.process in member.peer.processes:
                if notice.kind is NoticeKind.RESUMED:
                    log.warning("%s was resumed: %s", member.program.display_name, notice.reason)
                elif notice.kind is NoticeKind.HANGS:
                    log.warning("%s takes no turns: %s", member.program.display_name, notice.reason)
                member.peer.hear(notice)
                if notice.kind is NoticeKind.GOES_ON:
                    self._go_on(member)

    def _hear_of_hold_back(self, notice: Notice) -> None:
        """Others are held back because a program works, or were."""
        now = monotonic()
        for member in self._members.values():
            if notice.process in member.peer.processes:
                if notice.kind is NoticeKind.HOLDS_BACK:
                    self._policy.hold_back(member.client, now)
                else:
                    self._policy.record_holdback(member.client, notice.held_back_s, now)

    def _go_on(self, member: _Member) -> None:
        """Its user has continued it, or the driver's call has returned. It does not wait for the next reading."""
        if member.joined and member.peer.held_up is None:
            now = monotonic()
            self._turns.apply(self._policy.rejoin(member.client, now), now)

    def _pauser_changed(self) -> None:
        if self.enforcement is not None:
            self.enforcement.pauser_changed()
        if self.parking is not None:
            self.parking.newcomers.pauser_changed()
        if self._pauser.available:
            if self._is_unsure:
                self._is_unsure = False
                log.info("the programs that the lost pauser had paused run again")
            return
        # Called for each attempt to start one.
        if self._members:
            paused = self._pauser.paused
            self._is_unsure = paused > 0
            if paused:
                log.warning(
                    "programs take no turns: %s. %d of them were paused; the pauser's watchdog or the next pauser "
                    "resumes them",
                    self._pauser.reason,
                    paused,
                )
            else:
                log.warning("programs run freely: %s", self._pauser.reason)
        now = monotonic()
        self._roles.clear()
        for key, member in list(self._members.items()):
            member.peer.forget()
            self._remove(key, now)

    def switched(self, now: float) -> None:
        """The scheduler was switched on or off. Programs that use the GPU take part at once, without a reading."""
        for member in self._members.values():
            if member.joined and member.peer.held_up is None:
                self._turns.perform(self._policy.rejoin(member.client, now))
        self._name_roles(now)
        self._turns.apply((), now)

    # Limits

    def limits_changed(self, now: float) -> None:
        for member in self._members.values():
            self._apply_limits(member, now)
        self._name_roles(now)
        self._turns.apply((), now)

    def count_named(self, target: str) -> int:
        return sum(target in self._names(member) for member in self._members.values())

    def _forget_limits_of_ended(self, reading: ProgramReading) -> None:
        for target in self._pid_targets.see(self._limits.targets, reading.processes):
            log.info("the limit of %s ended with its process: another process has the pid", target)
            self._limits.clear_limit(target)

    def _apply_limits(self, member: _Member, now: float) -> None:
        limits = self._look_up(member)
        self._limits.put(member.client, limits)
        self._turns.perform(self._policy.limit_core(member.client, limits.core_percent, now))
        self._turns.perform(self._policy.set_class(member.client, limits.sharing_class, now))

    def class_of(self, program: Program) -> SharingClass:
        """Of any program: also of one that is parked, or has just started."""
        return self._decide(program, sorted(names(program))).sharing_class

    def _look_up(self, member: _Member) -> ClientLimits:
        return self._decide(member.program, self._names(member))

    def _decide(self, program: Program, called: Iterable[str]) -> ClientLimits:
        pod = pod_of(program)
        return quotas.decide(
            set_limit=self._limits.set_for(called),
            annotation=None if pod is None else self._limits.annotations.get(pod),
            config=quota_of(self._rules, program),
            label=class_of_label(program),
            lease=class_of_lease(program),
        )

    def _names(self, member: _Member) -> Iterable[str]:
        return (client_name(member.client.id), *sorted(names(member.program)))


def _takes_turns_on(gpu: GpuQueue) -> bool:
    return gpu.phases.current is not None and gpu.phases.current.way is Way.TURNS


def _is_contested(gpu: GpuQueue, now: float) -> bool:
    """Whether a new program takes part as soon as it is seen."""
    return _takes_turns_on(gpu) or gpu.phases.coruns.has_passing_programs(now)


def _takes_turns(client: Client, now: float) -> bool:
    """A connected client that requests nothing, as some libraries do without a limit, is a program like any other."""
    requests = client.standing is not ClientStanding.IDLE or now - client.service.ran_s < _REQUESTS_WITHIN_S
    return requests and not client.is_program
