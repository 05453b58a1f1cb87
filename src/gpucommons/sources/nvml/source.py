"""Reads the GPUs through NVML: keeps a session with the driver and restarts it when necessary.

A session finds the GPUs and reads all of them, from the start of the library to its end.
"""

import logging
import os
import time
from collections.abc import Callable, Mapping
from ctypes import byref, c_int, c_uint
from pathlib import Path

from gpucommons.base.backoff import RetrySchedule
from gpucommons.model.gpu import Gpu, GpuIdentity, GpuReading
from gpucommons.sources.nvml import header, library
from gpucommons.sources.nvml.calls import FAST_BUDGET_S, SLOW_EVERY_S, Handle
from gpucommons.sources.nvml.device import NvmlDevice
from gpucommons.sources.nvml.events import EventSet
from gpucommons.sources.nvml.gpm import GpmAccess, GpmTarget
from gpucommons.sources.nvml.identity import read_identity
from gpucommons.sources.nvml.presence import (
    NO_LIBRARY,
    GpuRecord,
    Remembered,
    read_pci_gpus,
    same_place,
    sees_every_gpu,
)
from gpucommons.sources.nvml.processes import StartTimes
from gpucommons.sources.nvml.reader_state import Notes
from gpucommons.sources.source import SourceAbsent, SourceError

# One session with the driver, from start to end: finds the GPUs, and reads all of them.

log = logging.getLogger(__name__)


def _cuda_version() -> str:
    query = library.function("nvmlSystemGetCudaDriverVersion_v2")
    version = c_int()
    if query is None or query(byref(version)) != library.OK:
        return ""
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def _peer_links(gpus: list[tuple[Handle, str]]) -> dict[tuple[str, str], int]:
    """The state of NVLink between each two GPUs, which only changes with the hardware or the driver's settings."""
    query = library.function("nvmlDeviceGetP2PStatus")
    status_of_pair: dict[tuple[str, str], int] = {}
    if query is None:
        return status_of_pair
    status = c_int()
    for handle, uuid in gpus:
        for peer, peer_uuid in gpus:
            if (
                peer is not handle
                and query(handle, peer, header.NVML_P2P_CAPS_INDEX_NVLINK, byref(status)) == library.OK
            ):
                status_of_pair[uuid, peer_uuid] = status.value
    return status_of_pair


class Session:
    """Opened after the library has been started; `close` before it is stopped."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._devices: list[NvmlDevice] = []
        self._events = EventSet(notes.events)
        self.peer_links: dict[tuple[str, str], int] = {}
        try:
            self.driver_version = library.text("nvmlSystemGetDriverVersion")
            self.nvml_version = library.text("nvmlSystemGetNVMLVersion")
            self.cuda_version = _cuda_version()
            if notes.meet_driver(self.driver_version):
                log.info("the NVIDIA driver is now %s", self.driver_version)
            self._find()
        except BaseException:
            self.close()
            raise

    def _find(self) -> None:
        """Open every GPU that the driver counts. One that cannot be opened is expected, but not present."""
        count = c_uint()
        query = library.function("nvmlDeviceGetCount_v2")
        code = library.OK if query is None else query(byref(count))
        if code:
            raise library.SessionLost(code)
        roster, wall_s = self._notes.roster, self._notes.wall()
        unopened: list[str] = []
        opened: list[tuple[Handle, str]] = []
        roster.record_count(count.value)
        for index in range(count.value):
            try:
                handle, identity = self._open(index)
            except library.GpuLost as lost:
                unopened.append(f"GPU {index} cannot be opened: {lost.reason}")
                continue
            if roster.record_found(identity, wall_s):
                log.info("GPU %d (%s) is back", index, identity.uuid)
            opened.append((handle, identity.uuid))
            since_wall_s = roster.entry(identity.uuid).since_wall_s
            self._devices.append(NvmlDevice(handle, identity, since_wall_s, self._notes))
        for entry in roster.missing({device.identity.uuid for device in self._devices}, wall_s):
            log.error("GPU %s at %s is gone", entry.identity.uuid, entry.identity.pci_bus_id)
        if roster.record_unopened(len(unopened)):
            for line in unopened:
                log.error(line)

        self.peer_links = _peer_links(opened)

    def _open(self, index: int) -> tuple[Handle, GpuIdentity]:
        handle = header.OpaquePointer()
        query = library.function("nvmlDeviceGetHandleByIndex_v2")
        if query is None:
            raise library.GpuLost("no_handle")
        code = query(c_uint(index), byref(handle))
        if code in library.SESSION_LOST:
            raise library.SessionLost(code)
        if code:
            raise library.GpuLost(library.name_of(code))
        identity = read_identity(handle, index)
        self._events.watch(handle, identity.uuid)
        return handle, identity

    @property
    def mig_pending(self) -> bool:
        return any(device.mig_pending for device in self._devices)

    def read(self, now_s: float) -> list[Gpu]:
        """The GPUs that answer, by index. A GPU that is lost is left out from then on."""
        self._events.poll(self._notes.wall())
        gpus = []
        lost = []
        for position, device in enumerate(self._devices):
            try:
                gpus.append(device.read(now_s, SLOW_EVERY_S * position / len(self._devices)))
            except library.GpuLost as gone:
                lost.append(device)
                self._lose(device, gone.reason)
        for device in lost:
            self._devices.remove(device)
        self._notes.start_times.end_pass()
        return gpus

    def gpm_targets(self) -> dict[str, GpmTarget]:
        """The GPUs and MIG devices with GPM, by UUID."""
        return dict(target for device in self._devices for target in device.gpm_targets())

    def _lose(self, device: NvmlDevice, reason: str) -> None:
        identity = device.identity
        device.close()
        if self._notes.roster.record_lost(identity.uuid, reason, self._notes.wall()):
            log.error("GPU %d (%s) at %s: %s", identity.index, identity.uuid, identity.pci_bus_id, reason)

    def close(self) -> None:
        for device in self._devices:
            device.close()
        self._devices = []
        self._events.close()


# Reads the GPUs through NVML: keeps a session with the driver and restarts it when necessary.
#
# Runs on the thread of its source and starts no other. A driver call that hangs blocks only this thread.

_KERNEL_CHECK_EVERY_S = 15.0
_STEP_ASIDE_S = 3.0
# Detail and remedy where there is no driver to ask.
_NO_DRIVER = {
    library.LIBRARY_NOT_FOUND: NO_LIBRARY,
    library.DRIVER_NOT_LOADED: (
        "the NVIDIA driver is installed but not loaded",
        "load it with: modprobe nvidia; if that fails, its module is not built for this kernel: install it again",
    ),
}
_REFUSAL_REMEDIES = {
    library.VERSION_MISMATCH: "reboot, or reload the driver's module: library and module are of different versions",
    library.NO_PERMISSION: "let the agent read /dev/nvidia*: run it as root, or as a user who may",
}


class NvmlReader:
    def __init__(
        self,
        procfs: Path = Path("/proc"),
        sysfs: Path = Path("/sys"),
        *,
        record: GpuRecord | None = None,
        environment: Mapping[str, str] = os.environ,
        fast_budget_s: float = FAST_BUDGET_S,
        keep_fast: frozenset[str] = frozenset(),
        gpm_access: GpmAccess | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        # The third tick after a call hung must be past it: then the readings are gone within three intervals.
        self._monotonic = monotonic
        self._kernel_list = procfs / "driver" / "nvidia" / "gpus"
        self._sysfs = sysfs
        self._record = record
        self._compares = sees_every_gpu(environment)
        self._unlisted: tuple[str, ...] = ()
        self._notes = Notes(StartTimes(procfs), wall, timer, fast_budget_s, keep_fast)
        self._gpm_access = GpmAccess() if gpm_access is None else gpm_access
        self._session: Session | None = None
        self._connections = 0
        self._retry = RetrySchedule(first_s=1.0, max_s=60.0)
        self._refused_code: int | None = None
        # To find a lost GPU again the session must be restarted; that costs the other GPUs one GPM reading.
        self._rescan = RetrySchedule(first_s=10.0, max_s=300.0)
        self._aside = RetrySchedule(first_s=60.0, max_s=3600.0)
        self._aside_until_s = 0.0
        self._kernel_due_s = 0.0
        self._kernel_gpus: int | None = None
        if record is not None and self._compares:
            self._notes.roster.remember(record.load(wall()))

    def read(self) -> GpuReading:
        now_s = self._monotonic()
        session = self._session
        if session is not None and self._should_rescan(now_s) and self._disconnect():
            session = None
        if session is None:
            session = self._connect(now_s)
        try:
            gpus = session.read(now_s)
        except library.SessionLost as lost:
            self._disconnect()
            raise self._refusal(lost.code, now_s) from lost
        self._step_aside(session, now_s)
        self._gpm_access.lend(session.gpm_targets())
        return self._reading(session, gpus, now_s)

    def close(self) -> None:
        self._disconnect()

    # -- the session

    def _connect(self, now_s: float) -> Session:
        if now_s < self._aside_until_s:
            raise _stepping_aside()
        if self._refused_code is not None and not self._retry.is_due(now_s):
            raise _refusal(self._refused_code)
        try:
            library.start()
            try:
                session = Session(self._notes)
            except library.SessionLost:
                library.stop()
                raise
        except library.SessionLost as lost:
            raise self._refusal(lost.code, now_s) from lost
        self._session = session
        self._connections += 1
        self._retry.reset()
        self._refused_code = None
        self._kernel_gpus = self._count_kernel_gpus()
        self._unlisted = self._find_unlisted()
        return session

    def _disconnect(self) -> bool:
        """False if a borrower of GPM is in a driver call that does not return: the session cannot end then."""
        if self._session is not None:
            if not self._gpm_access.take_back():
                return False
            self._session.close()
            self._session = None
            library.stop()
        return True

    def _refusal(self, code: int, now_s: float) -> SourceError | SourceAbsent:
        """Why there is no session, as an exception for the sampler."""
        # A missing driver is a fault only where the bus has a GPU.
        if code in _NO_DRIVER and not self._connections and not read_pci_gpus(self._sysfs):
            return SourceAbsent(*_NO_DRIVER[code])
        if code == library.VERSION_MISMATCH and self._session is None:
            # The library file was replaced while it was loaded, or the kernel still runs the old module.
            library.unload()
        self._retry.postpone(now_s)
        self._refused_code = code
        return _refusal(code)

    def _find_unlisted(self) -> tuple[str, ...]:
        """The GPUs of the PCI bus that the driver does not list, in this session or before."""
        if not self._compares:
            return ()
        listed = {same_place(identity.pci_bus_id) for identity in self._notes.roster.identities()}
        return tuple(place for place in read_pci_gpus(self._sysfs) if same_place(place) not in listed)

    # -- when to restart the session

    def _should_rescan(self, now_s: float) -> bool:
        """Whether a GPU may have come back or been added since the session began."""
        if self._rescan.waiting and self._rescan.is_due(now_s):
            return True
        if now_s < self._kernel_due_s:
            return False
        self._kernel_due_s = now_s + _KERNEL_CHECK_EVERY_S
        self._unlisted = self._find_unlisted()
        return self._count_kernel_gpus() != self._kernel_gpus

    def _count_kernel_gpus(self) -> int | None:
        """The number of GPUs in the kernel module: NVML counts them only once, when it starts."""
        try:
            return len(os.listdir(self._kernel_list))
        except OSError:
            return None

    def _step_aside(self, session: Session, now_s: float) -> None:
        """A pending change of the MIG mode waits until no process, including this one, uses the GPU: disconnect."""
        if not session.mig_pending:
            self._aside.reset()
        elif self._aside.is_due(now_s):
            self._aside.postpone(now_s)
            if self._disconnect():
                self._aside_until_s = now_s + _STEP_ASIDE_S
                raise _stepping_aside()

    # -- the reading

    def _reading(self, session: Session, gpus: list[Gpu], now_s: float) -> GpuReading:
        notes = self._notes
        roster, counts = notes.roster, notes.counts()
        if roster.complete:
            self._rescan.reset()
        elif not self._rescan.waiting or self._rescan.is_due(now_s):
            self._rescan.postpone(now_s)
        absent = [
            Gpu(
                entry.identity,
                up=False,
                since_wall_s=entry.since_wall_s,
                down_reason=entry.reason,
                xid=notes.events.record(entry.identity.uuid),
            )
            for entry in roster.absentees()
        ]
        if self._record is not None:
            lost = [Remembered(entry.identity, entry.since_wall_s) for entry in roster.absentees()]
            self._record.keep((gpu.identity for gpu in gpus), lost, notes.wall())
        return GpuReading(
            driver_version=session.driver_version,
            nvml_version=session.nvml_version,
            cuda_version=session.cuda_version,
            gpus=(*gpus, *absent),
            expected=max(roster.expected, len(gpus) + len(absent) + len(self._unlisted)),
            present=roster.present,
            connections=self._connections,
            lane_moves=counts.lane_moves,
            slow_calls=counts.slow_calls,
            samples_dropped=counts.samples_dropped,
            call_failures=counts.call_failures,
            peer_links=session.peer_links,
            unlisted=self._unlisted,
        )


def _refusal(code: int) -> SourceError:
    """A new exception each time: one that is raised repeatedly accumulates tracebacks."""
    if code in _NO_DRIVER:
        return SourceError(library.name_of(code), *_NO_DRIVER[code])
    remedy = _REFUSAL_REMEDIES.get(code, "see the kernel log: dmesg | grep -i nvrm; then reload the driver or reboot")
    return SourceError(library.name_of(code), f"NVML: {library.error_text(code)}", remedy)


def _stepping_aside() -> SourceError:
    return SourceError(
        "stepping_aside",
        f"a MIG mode change waits for the GPU to be free: disconnected from the driver for {_STEP_ASIDE_S:g} s",
    )
