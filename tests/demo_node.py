"""A node with everything on it, drawn from the seconds that have passed: GPUs, owners, turns, accounts, events.

For tests and benchmarks of the faces: every value is of the model, nothing is read. The same second is the same node.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpucommons.model.accounts import (
    BILLION,
    AccountsReading,
    Amounts,
    Charge,
    HeldKey,
    OwnerKey,
    PeriodAccounts,
    Prices,
)
from gpucommons.model.allocations import (
    WHOLE_SHARE,
    Access,
    Account,
    Allocation,
    AllocationReading,
    AllocationState,
    Slot,
    SlotInfo,
    WorkloadKind,
)
from gpucommons.model.cost import charge_of
from gpucommons.model.events import Alert, AlertsReading, Event, EventLogReading
from gpucommons.model.gpu import (
    GpmReading,
    Gpu,
    GpuIdentity,
    GpuProcess,
    GpuReading,
    GpuReadings,
    MigInstance,
    MigMemory,
    XidRecord,
)
from gpucommons.model.host import CpuReading, MemoryReading, PressureReading
from gpucommons.model.idle import ChannelState, IdleEvent, IdleMessage, IdleReading, IdleStep
from gpucommons.model.leases import (
    Lease,
    LeaseRequest,
    LeasesReading,
    LeaseWait,
    Reservation,
    Trespasser,
    WaitCause,
)
from gpucommons.model.ownership import (
    Attribution,
    Basis,
    GpuAccount,
    Owner,
    OwnerKind,
    OwnerShare,
    Place,
    PodPlace,
    Portion,
    ProcessShare,
    Reason,
    Unattributed,
    Workload,
)
from gpucommons.model.process_identity import CommandLineReading, PidScope, PidView, ProcessKey
from gpucommons.model.sharing import (
    ClientSharing,
    GpuSharing,
    HistogramReading,
    LeftAlone,
    ParkedReading,
    ParkingReading,
    SharingReading,
    WaitReading,
    WaitReason,
)
from gpucommons.model.snapshot import Readings
from gpucommons.model.words import By
from gpucommons.owners.slot_states import judge
from gpucommons.simulation import lab_host
from gpucommons.simulation.day import wobble
from gpucommons.simulation.scenario import Scenario, simulated_source
from gpucommons.sources.source import Source

GIB = 2**30
USERS = ("alice", "bob", "chen", "dana", "emeka", "farah")
HOSTILE = ("<script>alert(1)</script>", "x" * 200, "\u202egnp.exe", "💥🔥", 'a"b\n\\c')
PRICES = Prices((("*H200*", 3 * BILLION),), BILLION // 4, "EUR", 380 * BILLION)
_NO_HISTOGRAM = HistogramReading((), (0,), 0.0)


@dataclass(frozen=True, slots=True)
class DemoNode:
    gpus: int = 8
    processes_a_gpu: int = 3
    hostile: bool = False
    lost: int | None = None
    hot: int | None = None
    start_wall_s: float = 1_760_000_000.0

    # What each source reads.

    def gpu_reading(self, elapsed_s: float) -> GpuReading:
        cards = tuple(self._gpu(index, elapsed_s) for index in range(self.gpus))
        present = sum(card.up for card in cards)
        return GpuReading("570.86.15", "12.570.86", "12.8", cards, self.gpus, present)

    def attribution(self, elapsed_s: float) -> Attribution:
        rows = [row for card in self._up(elapsed_s) for row in self._shares(card, elapsed_s)]
        shares = tuple(row for row in rows if isinstance(row, ProcessShare))
        rest = tuple(row for row in rows if isinstance(row, Unattributed))
        return Attribution(
            shares,
            tuple(_owner_shares(shares)),
            rest,
            tuple(_account(card) for card in self._up(elapsed_s)),
            PidView(PidScope.HOST, "every process of the host can be seen"),
        )

    def command_lines(self, elapsed_s: float) -> CommandLineReading:
        """What a process runs, and arguments that its name does not have."""
        shares = self.attribution(elapsed_s).processes
        return CommandLineReading(
            {
                share.key: (*share.workload.process_name.split(), "--config", f"/data/run-{share.pid}.yaml")
                for share in shares
                if share.key is not None
            }
        )

    def sharing(self, elapsed_s: float) -> SharingReading:
        clients = tuple(client for index in range(min(2, self.gpus)) for client in self._clients(index, elapsed_s))
        return SharingReading(
            on=True,
            mode="auto",
            fixed_quantum_s=None,
            gpus=tuple(self._gpu_sharing(index, clients, elapsed_s) for index in range(min(2, self.gpus))),
            clients=clients,
            departed=(),
            messages={},
            disconnects={},
            refusals={},
            handoff_seconds=_NO_HISTOGRAM,
            window_s=10.0,
            share_programs="all",
            parking=ParkingReading(
                idle_after_s=1800.0,
                programs=(
                    ParkedReading(
                        "session:99@1000",
                        "alice · lab.ipynb (pid 99)",
                        "alice",
                        1000,
                        "parked",
                        self._identity(0).uuid,
                        (99,),
                        40 << 30,
                        40 << 30,
                        1_000_000_000.0,
                        "idle",
                    ),
                ),
            ),
            left_alone=(
                LeftAlone("alice · Xorg (pid 77)", "display", "it is a display server (Xorg)", 1000),
                LeftAlone("bob · serve.py (pid 78)", "label", "its container has the label gpucommons.share=no", 1001),
            ),
        )

    def accounts(self, elapsed_s: float) -> AccountsReading:
        def rows(days: float) -> dict[str, Amounts]:
            return {
                user: _amounts(held_s, 0.94 - 0.14 * index) for index, user, held_s in self._held_s(days, elapsed_s)
            }

        def charges(days: float) -> dict[str, Charge]:
            """The last user is on a GPU without a price."""
            billed = rows(days)
            models = dict.fromkeys(self.users, "NVIDIA H200") | {self.users[-1]: "NVIDIA T4"}
            return {user: charge_of(Slot("", "", "0"), models[user], billed[user], PRICES) for user in billed}

        periods = {"today": 0.6, "7d": 6.2, "30d": 24.0}
        now_s = self.start_wall_s + elapsed_s
        return AccountsReading(
            {
                name: PeriodAccounts(
                    By.USER, int(now_s - days * 86400), int(now_s), rows(days), charges=charges(days), prices=PRICES
                )
                for name, days in periods.items()
            },
            {
                HeldKey(OwnerKey("user", user, ""), user, uuid): ns
                for _, user, held_s in self._held_s(periods["today"], elapsed_s)
                for uuid, ns in self._halves(round(held_s * 10**9))
            },
        )

    def _halves(self, ns: int) -> list[tuple[str, int]]:
        return [(self._identity(0).uuid, ns // 2), (self._identity(1).uuid, ns - ns // 2)]

    def _held_s(self, days: float, elapsed_s: float) -> list[tuple[int, str, float]]:
        return [(index, user, days * 3600 * (21 - 3 * index) + elapsed_s) for index, user in enumerate(self.users)]

    def event_log(self, elapsed_s: float) -> EventLogReading:
        start_s = self.start_wall_s
        first = (
            Event(start_s - 7200, "gpu.allocated", self.users[0], "docker", {"gpu": "2"}, "e1"),
            Event(start_s - 3100, "quota.exceeded", self.users[1], "ledger", {"limit": "2 GPUs"}, "e2"),
            Event(start_s - 900, "gpu.xid", "", "nvml", {"gpu": "3", "xid": "63"}, "e3"),
        )
        each_minute = tuple(
            Event(start_s + 60 * minute, "container.started", self.users[minute % 6], "docker", id=f"m{minute}")
            for minute in range(int(elapsed_s // 60) + 1)
        )
        return EventLogReading(tuple(reversed(first + each_minute)))

    def allocations(self) -> AllocationReading:
        """A user holds one GPU with one container, as far as there are GPUs."""
        slots = [self._slot(index) for index in range(self.gpus)]
        held = tuple(
            Allocation(
                Account("user", user, id=str(1000 + index), user=user),
                WorkloadKind.CONTAINER,
                workload=f"{user}-train",
                workload_id=f"held-{index}",
                slot=slot,
                profile="",
                share=WHOLE_SHARE,
                state=AllocationState.RUNNING,
                interface="docker",
                managed=True,
                access=Access.SPECIFIC,
            )
            for index, (slot, user) in enumerate(zip(slots, self.users, strict=False))
        )
        return AllocationReading(tuple(SlotInfo(slot, index) for index, slot in enumerate(slots)), held)

    def _slot(self, index: int) -> Slot:
        uuid = self._identity(index).uuid
        return Slot(uuid, uuid, str(index))

    def alerts(self, elapsed_s: float) -> AlertsReading:
        return AlertsReading(
            (
                Alert("a1", "GPUHot", "critical", "active", self.start_wall_s - 300, "GPU 5 is at 91 °C", {"gpu": "5"}),
                Alert(
                    "a2", "GPUWaste", "warning", "suppressed", self.start_wall_s - 9000, "idle for 2 h", {"user": "bob"}
                ),
            )
        )

    def readings(self, elapsed_s: float) -> Readings:
        readings = Readings(
            cpu=lab_host.cpu(elapsed_s + 1),
            memory=lab_host.memory(elapsed_s),
            pressure=lab_host.pressure(elapsed_s),
            gpus=self.gpu_reading(elapsed_s),
            attribution=self.attribution(elapsed_s),
            command_lines=self.command_lines(elapsed_s),
            allocations=self.allocations(),
            sharing=self.sharing(elapsed_s),
            leases=self.leases(elapsed_s),
            idle=self.idle(),
            accounts=self.accounts(elapsed_s),
            event_log=self.event_log(elapsed_s),
            alerts=self.alerts(elapsed_s),
        )
        return readings._replace(slots=judge(readings, {}, self.start_wall_s + elapsed_s)[0])

    def idle(self) -> IdleReading:
        """A message for each user; the email of the first one is not accepted."""
        messages = (
            IdleMessage(f"m{index}", user, self.start_wall_s, IdleStep.NOTIFY, f"GPU {index} of {user} is idle.")
            for index, user in enumerate(self.users)
        )
        channel = ChannelState(
            "email",
            delivered=3,
            waiting=1,
            failing_since_wall_s=self.start_wall_s,
            detail=f"the mail server refused {self.users[0]}@example.org",
        )
        event = IdleEvent("1", "idle.notified", self.users[0], {"slot": "0"})
        return IdleReading(7200.0, "none", len(self.users), {IdleStep.NOTIFY: 6}, tuple(messages), (channel,), (event,))

    def leases(self, elapsed_s: float) -> LeasesReading:
        """Alice and bob have leases, alice's with a trespasser; chen and bob wait; dana has reserved a GPU."""
        wall_s = self.start_wall_s
        requests = [
            LeaseRequest(
                1000 + uid, USERS[uid], wall_s - 60, id=str(number), number=number, name=f"{USERS[uid]}'s training"
            )
            for number, uid in enumerate((0, 1, 2, 1), 1)
        ]
        return LeasesReading(
            slots={"GPU-a": "0", "GPU-b": "1"},
            leases=(Lease(requests[0], ("GPU-a",), 1.0, wall_s - 50), Lease(requests[1], ("GPU-b",), 1.0, wall_s)),
            waiting=(
                (requests[2], LeaseWait(1, WaitCause.BUSY, wall_s + 600 + elapsed_s)),
                (requests[3], LeaseWait(2, WaitCause.QUOTA, None, "user bob has 1 of 1 GPUs")),
            ),
            reservations=(Reservation("r1", 1003, "dana", 1, wall_s + 3600, wall_s + 7200, ("GPU-a",)),),
            trespassers=(Trespasser("1", "0", 30001, ProcessKey(30001, 77), "farah", "python"),),
            no_shows=(Reservation("r0", 1004, "emeka", 1, wall_s - 7200, wall_s - 3600),),
        )

    def scenario(self) -> Scenario:
        return Scenario("demo", "a node with everything on it", self._sources)

    # How they are drawn.

    def _sources(self, cadence_s: float, monotonic: Callable[[], float]) -> list[Source]:
        return [
            simulated_source("cpu", "cpu", CpuReading, lab_host.cpu, cadence_s, monotonic, essential=True),
            simulated_source("memory", "memory", MemoryReading, lab_host.memory, cadence_s, monotonic, essential=True),
            simulated_source("pressure", "pressure", PressureReading, lab_host.pressure, cadence_s, monotonic),
            simulated_source("nvml", "gpus", GpuReading, self.gpu_reading, cadence_s, monotonic),
            simulated_source("attribution", "attribution", Attribution, self.attribution, cadence_s, monotonic),
            simulated_source(
                "command_lines", "command_lines", CommandLineReading, self.command_lines, cadence_s, monotonic
            ),
            simulated_source("scheduler", "sharing", SharingReading, self.sharing, cadence_s, monotonic),
            simulated_source("leases", "leases", LeasesReading, self.leases, cadence_s, monotonic),
            simulated_source("accounts", "accounts", AccountsReading, self.accounts, cadence_s, monotonic),
            simulated_source("event_log", "event_log", EventLogReading, self.event_log, cadence_s, monotonic),
            simulated_source("alertmanager", "alerts", AlertsReading, self.alerts, cadence_s, monotonic),
        ]

    @property
    def users(self) -> tuple[str, ...]:
        return (*HOSTILE, "alice") if self.hostile else USERS

    def _up(self, elapsed_s: float) -> Iterator[Gpu]:
        return (card for card in self.gpu_reading(elapsed_s).gpus if card.up)

    def _busy(self, index: int, elapsed_s: float) -> float:
        level = (0.97, 0.62, 0.88, 0.05, 0.41, 0.99, 0.0, 0.73)[index % 8]
        return min(1.0, max(0.0, level * (1 + 0.12 * wobble(elapsed_s, 31 + 7 * index, index))))

    def _identity(self, index: int) -> GpuIdentity:
        return GpuIdentity(
            uuid=f"GPU-{index:08x}-5b1d-4c7e-9a51-00d1ce{index:06x}",
            index=index,
            name="NVIDIA H200",
            pci_bus_id=f"00000000:{0x1B + 8 * index:02X}:00.0",
            minor=index,
            architecture="hopper",
            compute_capability="9.0",
            temperature_slowdown_celsius=95,
            clock_sm_max_mhz=1980,
            clock_memory_max_mhz=3201,
            gpm_supported=True,
        )

    def _gpu(self, index: int, elapsed_s: float) -> Gpu:
        identity = self._identity(index)
        if index == self.lost:
            return Gpu(identity, False, self.start_wall_s - 754, "gpu_is_lost")
        busy = self._busy(index, elapsed_s)
        total, reserved = 141 * GIB, GIB // 2
        used = min(sum(self._memory(index, slot, elapsed_s) for slot in range(self._slots(index))), total - 4 * GIB)
        hot = index == self.hot
        readings = GpuReadings(
            utilization_percent=round(100 * busy),
            memory_utilization_percent=round(61 * busy),
            memory_total_bytes=total,
            memory_used_bytes=used + 300 * 2**20,
            memory_free_bytes=total - reserved - used - 300 * 2**20,
            memory_reserved_bytes=reserved,
            power_watts=76.4 + 598.1 * busy,
            power_limit_watts=700.0,
            temperature_celsius=91 if hot else round(33 + 37 * busy),
            memory_temperature_celsius=round(38 + 41 * busy),
            clock_sm_mhz=1215 if hot else 1980 if busy > 0.02 else 345,
            clock_memory_mhz=3201,
            performance_state=0 if busy > 0.02 else 8,
            throttle_mask=0x44 if hot else 0x04 if busy > 0.95 else 0x01 if busy < 0.02 else 0,
            energy_millijoules=int(8_000_000_000 + elapsed_s * (76_400 + 598_100 * busy)),
            ecc_uncorrected_aggregate=0,
        )
        gpm = GpmReading(
            busy, 0.9 * busy, 0.55 * busy, 0.4 * busy, 0.0, 0.2 * busy, 0.1 * busy, 0.0, dram_ratio=0.5 * busy
        )
        return Gpu(
            identity,
            True,
            self.start_wall_s - 86400,
            readings=readings,
            gpm=gpm,
            processes=tuple(
                GpuProcess(self._pid(index, slot), ProcessKey(self._pid(index, slot), 77), "compute", None)
                for slot in range(self._slots(index))
            ),
            mig_enabled=index == 4,
            mig_slices=7 if index == 4 else None,
            mig=tuple(_mig(identity.uuid, busy)) if index == 4 else (),
            xid=XidRecord(True, {63: 2}, 63, self.start_wall_s - 900) if index == 3 else XidRecord(True),
        )

    def _slots(self, index: int) -> int:
        return 0 if index % 8 == 6 else self.processes_a_gpu if index % 8 != 5 else 1

    def _pid(self, index: int, slot: int) -> int:
        return 20_000 + 1000 * index + slot

    def _memory(self, index: int, slot: int, elapsed_s: float) -> int:
        full = 118 * GIB // max(1, self._slots(index))
        return int(full * (0.55 + 0.3 * ((index + slot) % 3) / 2 + 0.02 * wobble(elapsed_s, 47, index + slot)))

    def _workload(self, index: int, slot: int) -> tuple[Owner, Workload]:
        number = (index + slot) % len(self.users)
        user, uid = self.users[number], 1000 + number
        names = ("python train.py", "python finetune.py", "vllm serve", "jupyter-lab", "python eval.py")
        process = HOSTILE[(index + slot) % len(HOSTILE)] if self.hostile else names[(index + slot) % len(names)]
        if (index + slot) % 5 == 4:
            pod = PodPlace(f"0b1c{number:04x}-77aa-4d0e-8d1c-5fd0c0ffee00", f"{user}-notebook-0", "research", "main")
            return (
                Owner(OwnerKind.POD, pod.uid, pod.name, pod.namespace),
                Workload(process, uid, user, f"c{number}" * 32, "main", "jupyter:2024", pod),
            )
        container = f"{user}-{slot}" if slot else None
        return (
            Owner(OwnerKind.USER, str(uid), user),
            Workload(
                process, uid, user, container and f"{index}{slot}" * 32, container, "pytorch:2.9" if slot else None
            ),
        )

    def _shares(self, card: Gpu, elapsed_s: float) -> Iterator[ProcessShare | Unattributed]:
        index, now = card.identity.index, card.readings
        slots = self._slots(index)
        sm_total = 10_000 * (now.utilization_percent or 0)
        power_total = round(1000 * (now.power_watts or 0))
        memory_rest = now.memory_used_bytes or 0
        sm_rest, power_rest = sm_total, power_total
        for slot in range(slots):
            owner, workload = self._workload(index, slot)
            memory = min(self._memory(index, slot, elapsed_s), memory_rest)
            sm, power = sm_total // slots, power_total // slots
            has_no_owner = slot == 2 and index == 2
            memory_rest, sm_rest, power_rest = memory_rest - memory, sm_rest - sm, power_rest - power
            if has_no_owner:
                yield Unattributed(card.identity.uuid, index, Reason.NO_OWNER, memory, sm, power)
            yield ProcessShare(
                Place(card.identity.uuid, index, 1 if card.mig else None),
                self._pid(index, slot),
                ProcessKey(self._pid(index, slot), 77),
                Portion(memory, Basis.MEASURED),
                Portion(sm, Basis.MEASURED if slot else Basis.APPORTIONED),
                Portion(power, Basis.APPORTIONED),
                None if has_no_owner else owner,
                Reason.NO_OWNER if has_no_owner else None,
                workload,
            )
        yield Unattributed(card.identity.uuid, index, Reason.DRIVER_RESERVED, memory_bytes=memory_rest)
        reason = Reason.ROUNDING if slots else Reason.NO_PROCESS
        yield Unattributed(card.identity.uuid, index, reason, None, sm_rest, power_rest)

    def _clients(self, index: int, elapsed_s: float) -> Iterator[ClientSharing]:
        holder = int(elapsed_s // 7) % 3
        for place in range(3):
            running = place == holder
            ahead = (place - holder - 1) % 3
            number = (place + 2 * index) % len(self.users)
            throttled = place == 2 and not running
            reason = WaitReason.QUOTA if throttled else WaitReason.TURN
            yield ClientSharing(
                client_id=f"{0xA0 + 16 * index + place:016x}",
                pod=f"{self.users[number]}-job",
                namespace="research",
                gpu_uuid=self._identity(index).uuid,
                gpu_index=index,
                protocol_version=2,
                pid=30_000 + 10 * index + place,
                uid=1000 + number,
                gid=100,
                standing="running" if running else "throttled" if throttled else "waiting",
                revoked=False,
                pending_drop=False,
                turn_s=elapsed_s % 7 if running else None,
                turns=int(elapsed_s // 21) + (1 if elapsed_s % 21 >= 7 * place else 0),
                wait=None
                if running
                else WaitReading(reason, elapsed_s % 7 + 7 * ahead, ahead, 9 * GIB, 7.0 * (ahead + 1)),
                allocated_bytes=(12 + 9 * place) * GIB,
                allocated_peak_bytes=(14 + 9 * place) * GIB,
                nvml_bytes=None,
                overhead_bytes=None,
                need_bytes=(13 + 9 * place) * GIB,
                memory_quota_bytes=0 if place else 40 * GIB,
                memory_quota_source="none" if place else "annotation",
                core_quota_percent=(100, 60, 25)[place],
                core_quota_effective_percent=(100.0, 60.0, 25.0)[place],
                core_quota_source="config",
                window_usage_s=2.5 * place,
                window_limit_s=(10.0, 6.0, 2.5)[place],
                throttled=throttled,
                debt_s=1.3 if throttled else 0.0,
                billed_s=elapsed_s / 3,
                demand_ratio=(0.98, 0.71, None)[place],
                name=f"research/{self.users[number]}-job",
            )

    def _gpu_sharing(self, index: int, clients: tuple[ClientSharing, ...], elapsed_s: float) -> GpuSharing:
        mine = [client for client in clients if client.gpu_index == index]
        waiting = sorted((client.wait.ahead, client.client_id) for client in mine if client.wait is not None)
        return GpuSharing(
            uuid=self._identity(index).uuid,
            index=index,
            slot=str(index),
            present=True,
            running=tuple(client.client_id for client in mine if client.turn_s is not None),
            request_queue=tuple(client_id for _, client_id in waiting),
            wait_queue=(),
            running_memory_bytes=12 * GIB,
            running_managed_bytes=11 * GIB,
            running_managed_peak_bytes=30 * GIB,
            total_memory_bytes=141 * GIB,
            total_memory_measured=True,
            safe_limit_bytes=139 * GIB,
            overloaded=False,
            way="turns",
            way_reason="demand",
            quantum_left_s=7 - elapsed_s % 7,
            busy_seconds=elapsed_s,
            drop_lock={},
            wait_for_mem=0,
            mem_available=0,
            wait_seconds=_NO_HISTOGRAM,
            turn_seconds=_NO_HISTOGRAM,
            drain_seconds=_NO_HISTOGRAM,
            gain_ratio=1.34 if index == 0 else None,
            coarse=index == 1,
        )


def _mig(uuid: str, busy: float) -> Iterator[MigInstance]:
    for gi, profile, slices, start, size in (
        (1, "3g.71gb", 3, 0, 4),
        (3, "2g.35gb", 2, 4, 2),
        (7, "1g.18gb", 1, 6, 1),
    ):
        total = size * 17 * GIB
        used = int(total * busy * 0.8)
        yield MigInstance(
            f"MIG-{uuid[4:12]}-{gi}", gi, 0, profile, slices, slices, 16 * slices, total, start, size,
            MigMemory(total, used, total - used, None), GpmReading(graphics_ratio=busy, sm_ratio=busy),
        )  # fmt: skip


def _owner_shares(shares: tuple[ProcessShare, ...]) -> Iterator[OwnerShare]:
    found: dict[tuple[str, Owner], list[ProcessShare]] = {}
    for share in shares:
        if share.owner is not None:
            found.setdefault((share.place.gpu_uuid, share.owner), []).append(share)
    for (uuid, owner), rows in found.items():
        yield OwnerShare(
            uuid,
            rows[0].place.gpu_index,
            owner,
            len(rows),
            _total([row.memory for row in rows]),
            _total([row.sm for row in rows]),
            _total([row.power for row in rows]),
        )


def _total(parts: list[Portion | None]) -> Portion:
    known = [part for part in parts if part is not None]
    apportioned = any(part.basis is Basis.APPORTIONED for part in known)
    return Portion(sum(part.amount for part in known), Basis.APPORTIONED if apportioned else Basis.MEASURED)


def _amounts(held_s: float, busy: float) -> Amounts:
    held_ns = round(held_s * 10**9)
    active_ns = round(held_ns * busy)
    energy_uj = round(held_s * (180 + 420 * busy) * 10**6)
    return Amounts(held_ns, active_ns, held_ns - active_ns, held_ns, active_ns // 2, round(held_s) << 24, energy_uj)


def _account(card: Gpu) -> GpuAccount:
    now = card.readings
    return GpuAccount(
        card.identity.uuid,
        card.identity.index,
        now.memory_used_bytes,
        10_000 * (now.utilization_percent or 0),
        round(1000 * (now.power_watts or 0)),
    )
