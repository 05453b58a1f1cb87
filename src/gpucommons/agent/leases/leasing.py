"""Leases in the agent: the service in its own thread, fed with every snapshot, read as a source."""

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gpucommons.agent.leases.facts import gpu_programs, leasable_slots, manager_of, user_facts
from gpucommons.base.peers import Admins
from gpucommons.base.processes import ancestors_from, boot_id, hides_processes, start_ticks, state_letter
from gpucommons.base.threads import LoopThread
from gpucommons.base.unix_listener import ListenError, group_id
from gpucommons.config.accounts import LeaseQuotaSettings
from gpucommons.config.option import ConfigError, Mistakes
from gpucommons.config.runtime_directory import lease_socket, runtime_directory
from gpucommons.config.settings import PathSettings, Settings
from gpucommons.config.state_directory import lease_record
from gpucommons.faces.documents.job import JobQuery, ReadJob, job_document
from gpucommons.faces.documents.queue import queue_document
from gpucommons.faces.documents.report import LedgerUnreadable
from gpucommons.leases.policy.values import LeaseRefused, SlotUse
from gpucommons.leases.service.limits import LeaseHost
from gpucommons.leases.service.record import LeaseRecord
from gpucommons.leases.service.server import LeaseAccess, LeaseServer
from gpucommons.leases.service.service import LeaseEnforcement, LeaseFacts, LeaseService
from gpucommons.model.leases import LeasesReading, Trespasser, TrespassReport
from gpucommons.model.names import job_of_lease
from gpucommons.model.process_identity import ProcessKey
from gpucommons.model.snapshot import Snapshot
from gpucommons.owners.attribution_stage import NamesUsers
from gpucommons.rules.privacy import Privacy, redact_leases
from gpucommons.simulation.scenario import Scenario
from gpucommons.sources.people.user_names import host_user_names
from gpucommons.sources.source import Source, SourceStarting

# Imported where they are used: most nodes have no MPS.
if TYPE_CHECKING:
    from gpucommons.agent.sharing.pausing import Enforcer
    from gpucommons.leases.mps.supervisor import LeaseMps, MpsSupervisor
    from gpucommons.simulation.shared_lab import LabLeaseUsers

# Of the daemons, below the runtime directory.
_MPS_DIRECTORY = "mps"

log = logging.getLogger(__name__)


def check_lease_quotas(settings: Settings) -> None:
    """Raises ConfigError, one line for each quota with a mistake."""
    mistakes = Mistakes()
    for name, row in settings.lease_quotas.items():
        with mistakes.collect():
            _check_quota(name, row, settings.ledger.enabled, settings.leases.mps)
    mistakes.raise_any()


def _check_quota(name: str, row: LeaseQuotaSettings, has_accounts: bool, mps: str) -> None:
    if bool(row.user) == bool(row.group):
        raise ConfigError(f'lease_quotas.{name}: set either user or group, such as user = "*" for each user')
    if not row.gpus and not row.hours and not row.sm_percent:
        raise ConfigError(f"lease_quotas.{name}: no limit is set; set gpus, hours or sm_percent")
    if row.sm_percent and mps == "off":
        raise ConfigError(
            f"lease_quotas.{name}: sm_percent is enforced by MPS; set leases.mps to per_user or all_users"
        )
    if row.hours and not has_accounts:
        raise ConfigError(f"lease_quotas.{name}: hours are those of the accounts; set ledger.enabled = true")


class Leasing:
    """The service of leases, a source of them, and an observer of snapshots."""

    def __init__(
        self,
        settings: Settings,
        scenario: Scenario | None = None,
        enforcer: "Enforcer | None" = None,
        users: "LabLeaseUsers | None" = None,
        read_job: ReadJob | None = None,
    ) -> None:
        """Without `enforcer`, trespassers are only reported. `users` are those of a scenario. `read_job` reads a job
        from the ledger; None where no ledger is kept."""
        check_lease_quotas(settings)
        self._settings = settings
        self._users = users
        self._scenario = None if scenario is None else scenario.name
        self._path = lease_socket(settings.leases.socket)
        self._cadence_s = settings.sampling.interval_s
        self._thread = LoopThread("leases", self._close)
        self._server: LeaseServer | None = None
        self._enforcer = enforcer
        self._mps: MpsSupervisor | None = None
        self._names: NamesUsers = (
            host_user_names(Path(settings.path.procfs))
            if scenario is None or scenario.world is None
            else scenario.world.users
        )
        # The pids of clients are those of our namespace; the process table may be that of the host.
        self._shows_own_pids = scenario is None and settings.path.procfs == PathSettings().procfs
        self._read_job = read_job
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reports: set[asyncio.Task[None]] = set()
        self._uses: Mapping[str, SlotUse] = {}
        self._manager: str | None = None
        self._seen_manager: tuple[object, ...] = ()
        self._known: LeaseFacts | None = None

    def sources(self) -> list[Source]:
        return [Source("leases", "leases", LeasesReading, self._read, self._cadence_s, runs_on="loop")]

    async def start(self) -> None:
        """Without the default socket the agent runs without leases. Raises ListenError for one that is set."""
        access = self._access()
        self._loop = asyncio.get_running_loop()
        try:
            await self._thread.start(lambda: self._open(access))
        except ListenError as error:
            if self._settings.leases.socket:
                raise
            log.warning("leases are off: %s ('leases.enabled = false' for none)", error)

    async def stop(self) -> None:
        for task in self._reports:
            task.cancel()
        await self._thread.stop()

    def end_lease(self, id: str, why: str, done: Callable[[str], None]) -> None:
        """`done` gets why the lease could not be ended; empty if it was. It is called on another thread."""
        server = self._server
        if server is None:
            done("leases are off")
            return

        def end() -> None:
            try:
                server.service.cancel(id, os.getuid(), is_admin=True, why=why)
            except LeaseRefused as error:
                done(str(error))
            else:
                done("")

        self._thread.call(end)

    def observe(self, snapshot: Snapshot) -> None:
        server = self._server
        if server is None:
            return
        facts = self._facts(snapshot, server.service)
        # Where there is no GPU and no user has asked for one, the service has nothing to do.
        if not facts.slots and facts == self._known and not server.service.has_requests and self._users is None:
            return
        self._known = facts
        self._thread.call(lambda: self._update(server, facts))

    def _update(self, server: LeaseServer, facts: LeaseFacts) -> None:
        """On the thread of leases."""
        server.wake()
        server.service.update(facts)
        if self._users is not None:
            self._users.step(server.service, ProcessKey(os.getpid(), start_ticks_of(os.getpid()) or 0))

    def _read(self) -> LeasesReading:
        server = self._server
        if server is None:
            raise SourceStarting("the lease service has not started")
        reading = server.service.reading
        return reading if self._shows_own_pids else reading._replace(clients={})

    def _facts(self, snapshot: Snapshot, service: LeaseService) -> LeaseFacts:
        readings = snapshot.readings
        nvml = snapshot.sources.get("nvml")
        slots = leasable_slots(readings, self._uses)
        if slots is None and nvml is not None and nvml.absent:
            slots = ()
        self._uses = self._uses if slots is None else {slot.uuid: slot.use for slot in slots}
        read_s = snapshot.wall_s
        if nvml is not None and nvml.last_success_wall_s is not None:
            read_s = nvml.last_success_wall_s - (nvml.duration_s or 0.0)
        leases = () if readings.leases is None else readings.leases.leases
        parking = None if readings.sharing is None else readings.sharing.parking
        return LeaseFacts(
            slots,
            read_s,
            user_facts(readings),
            gpu_programs(readings) if leases or service.has_overdue else (),
            self._off_reason(snapshot),
            frozenset(lease.request.id for lease in leases),
            {} if parking is None else parking.expected_rooms,
            {} if readings.slots is None else {status.slot.uuid: status for status in readings.slots.slots},
        )

    def _request_report(self, id: str) -> None:
        """Called on the thread of the leases. The ledger belongs to the agent's loop."""
        if self._loop is not None:
            with suppress(RuntimeError):  # The loop may be closed at any moment.
                self._loop.call_soon_threadsafe(self._start_report, id)

    def _start_report(self, id: str) -> None:
        task = asyncio.create_task(self._report(id), name="lease-report")
        self._reports.add(task)
        task.add_done_callback(self._reports.discard)

    async def _report(self, id: str) -> None:
        """`job` is null where the lease was shorter than the time between two snapshots: then nothing was billed."""
        report: dict[str, object] = {"job": None, "error": ""}
        try:
            if self._read_job is None:
                report["error"] = "no ledger is kept ([ledger] enabled)"
            elif billed := await self._read_job(JobQuery(job_of_lease(id))):
                report["job"] = job_document(billed)
        except LedgerUnreadable as error:
            report["error"] = str(error)
        server = self._server
        if server is not None:
            self._thread.call(lambda: server.service.deliver_report(id, report))

    def _off_reason(self, snapshot: Snapshot) -> str:
        """Why leases are off: another system allocates the GPUs, and the administrator did not decide."""
        if self._settings.leases.enabled == "true" or self._scenario is not None:
            return ""
        readings = snapshot.readings
        inputs = (readings.processes, readings.job_mapping, readings.pod_devices, readings.pods)
        if len(self._seen_manager) != len(inputs) or any(
            a is not b for a, b in zip(inputs, self._seen_manager, strict=True)
        ):
            self._seen_manager, self._manager = inputs, manager_of(readings)
        if self._manager is None:
            return ""
        return (
            f"{self._manager} allocates the GPUs of this node, so leases are off; leases.enabled = true turns them on"
        )

    def _access(self) -> LeaseAccess:
        """Raises ListenError if the group of administrators does not exist."""
        settings = self._settings
        hidden = hides_processes(Path(settings.path.procfs))
        privacy = Privacy(settings.privacy.show_owners, unix=True, agent_uid=os.getuid(), hides_processes=hidden)

        def document(reading: LeasesReading, uid: int, user: str, is_local: bool) -> object:
            return queue_document(redact_leases(reading, privacy.viewer(uid, user, False, is_local)), time.time())

        return LeaseAccess(
            Admins(os.getuid(), group_id(settings.leases.admin_group)),
            self._user_name,
            lambda uid, is_local: privacy.viewer(uid, None, False, is_local).sees_accounts,
            document,
        )

    async def _open(self, access: LeaseAccess) -> None:
        record = LeaseRecord(lease_record(self._scenario), boot_id())
        descends = is_descendant if self._scenario is None else _never
        sends = send_signal if self._shows_own_pids else _send_to_none
        host = LeaseHost(time.time, time.monotonic, start_ticks_of, descends, self._request_report, sends)
        mps, lease_mps = self._make_mps()
        quotas = self._settings.lease_quotas.values()
        service = LeaseService(
            self._settings.leases, quotas, record, host, self._scenario, self._enforcement(), lease_mps
        )
        server = LeaseServer(str(self._path), service, access)
        await server.start()
        self._server, self._mps = server, mps
        if mps is not None:
            await mps.start()
            service.settle()

    def _make_mps(self) -> "tuple[MpsSupervisor, LeaseMps] | tuple[None, None]":
        """The daemons, and what leases see of them; None where leases do not use MPS. A simulation has no GPU for it.

        Where it was switched off, daemons that an earlier agent started are still to be stopped.
        """
        mode, directory = self._settings.leases.mps, runtime_directory() / _MPS_DIRECTORY
        if self._scenario is not None or (mode == "off" and not directory.is_dir()):
            return None, None
        from gpucommons.leases.mps.control import MpsControl
        from gpucommons.leases.mps.supervisor import LeaseMps, MpsSupervisor

        control = MpsControl(directory, is_shared=mode == "all_users")
        if (obstacle := control.general_obstacle()) and mode != "off":
            log.warning("leases: commands that share a GPU run without MPS: %s", obstacle)

        def gpu_name(uuid: str) -> str:
            server = self._server
            return uuid if server is None else server.service.reading.slots.get(uuid, uuid)

        def on_change() -> None:
            if self._server is not None:
                self._server.service.settle()

        supervisor = MpsSupervisor(control, mode, self._user_name, gpu_name, on_change)
        return supervisor, LeaseMps(supervisor, mode)

    def _enforcement(self) -> LeaseEnforcement | None:
        enforcer = self._enforcer
        if enforcer is None:
            return None

        def report(trespassers: Sequence[Trespasser]) -> None:
            leases: dict[ProcessKey, frozenset[str]] = {}
            for trespasser in trespassers:
                if trespasser.key is not None:
                    leases[trespasser.key] = leases.get(trespasser.key, frozenset()) | {trespasser.lease_id}
            enforcer.update_trespassers(TrespassReport(leases, time.monotonic()))

        def mark(trespasser: Trespasser) -> Trespasser:
            standing = enforcer.trespass_standing
            if trespasser.key is None:
                return trespasser._replace(spared="the agent cannot see it")
            paused = trespasser.key in standing.paused
            return trespasser._replace(
                paused=paused, spared="" if paused else standing.spared.get(trespasser.key, "it was found a moment ago")
            )

        return LeaseEnforcement(report, mark, overdue_only=self._settings.leases.enforce != "pause")

    async def _close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.stop()
        if self._mps is not None:
            await self._mps.stop()

    def _user_name(self, uid: int) -> str:
        return self._names.see([uid]).get(uid) or str(uid)


def is_descendant(pid: int, ancestor: int) -> bool:
    """Whether a process is `ancestor` or was started by it, directly or not. Reads procfs."""
    return any(parent == ancestor for parent, _ in ancestors_from("/proc", pid))


def start_ticks_of(pid: int) -> int | None:
    """None for a process that has ended, also while its parent has not read its status."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        return None if state_letter(stat) == "Z" else start_ticks(stat)
    except (OSError, ValueError, IndexError):
        return None


def send_signal(process: ProcessKey, number: signal.Signals) -> str:
    """Returns why the signal could not be sent; empty if it was, or if the process has ended."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return ""
    except OSError as error:
        return f"it cannot be ended: {error.strerror}"
    try:
        # The descriptor keeps the pid from being reused between this check and the signal.
        if start_ticks_of(process.pid) == process.start_ticks:
            signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return ""
    except OSError as error:
        return f"the agent may not end it: {error.strerror}; run the agent as root"
    finally:
        os.close(descriptor)
    return ""


def _send_to_none(process: ProcessKey, number: signal.Signals) -> str:
    return "its pid is not one of this machine, or of another namespace"


def _never(pid: int, ancestor: int) -> bool:
    """The pids of a scenario are not those of this machine."""
    return False
