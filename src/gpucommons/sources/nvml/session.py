"""One session with the driver, from start to end: finds the GPUs, and reads all of them."""

import logging
from ctypes import byref, c_int, c_uint

import pynvml

from gpucommons.model.gpu import Gpu, GpuIdentity
from gpucommons.sources.nvml import codes, library
from gpucommons.sources.nvml.call import Handle
from gpucommons.sources.nvml.device import NvmlDevice
from gpucommons.sources.nvml.events import EventSet
from gpucommons.sources.nvml.gpm_access import GpmTarget
from gpucommons.sources.nvml.identity import read_identity
from gpucommons.sources.nvml.lanes import SLOW_EVERY_S
from gpucommons.sources.nvml.notes import Notes

log = logging.getLogger(__name__)


def _cuda_version() -> str:
    query = library.function("nvmlSystemGetCudaDriverVersion_v2")
    version = c_int()
    if query is None or query(byref(version)) != codes.OK:
        return ""
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def _peer_links(gpus: list[tuple[Handle, str]]) -> dict[tuple[str, str], int]:
    """The state of NVLink between each two GPUs, which only changes with the hardware or the driver's settings."""
    query = library.function("nvmlDeviceGetP2PStatus")
    found: dict[tuple[str, str], int] = {}
    if query is None:
        return found
    status = c_int()
    for handle, uuid in gpus:
        for peer, peer_uuid in gpus:
            if peer is not handle and query(handle, peer, pynvml.NVML_P2P_CAPS_INDEX_NVLINK, byref(status)) == codes.OK:
                found[uuid, peer_uuid] = status.value
    return found


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
        code = codes.OK if query is None else query(byref(count))
        if code:
            raise codes.SessionLost(code)
        roster, wall_s = self._notes.roster, self._notes.wall()
        unopened: list[str] = []
        opened: list[tuple[Handle, str]] = []
        roster.enumerated(count.value)
        for index in range(count.value):
            try:
                handle, identity = self._open(index)
            except codes.GpuLost as lost:
                unopened.append(f"GPU {index} cannot be opened: {lost.reason}")
                continue
            if roster.found(identity, wall_s):
                log.info("GPU %d (%s) is back", index, identity.uuid)
            opened.append((handle, identity.uuid))
            since_wall_s = roster.entry(identity.uuid).since_wall_s
            self._devices.append(NvmlDevice(handle, identity, since_wall_s, self._notes))
        for entry in roster.missing({device.identity.uuid for device in self._devices}, wall_s):
            log.error("GPU %s at %s is gone", entry.identity.uuid, entry.identity.pci_bus_id)
        if roster.unopened(len(unopened)):
            for line in unopened:
                log.error(line)

        self.peer_links = _peer_links(opened)

    def _open(self, index: int) -> tuple[Handle, GpuIdentity]:
        handle = pynvml.c_nvmlDevice_t()
        query = library.function("nvmlDeviceGetHandleByIndex_v2")
        if query is None:
            raise codes.GpuLost("no_handle")
        code = query(c_uint(index), byref(handle))
        if code in codes.SESSION_LOST:
            raise codes.SessionLost(code)
        if code:
            raise codes.GpuLost(codes.name_of(code))
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
            except codes.GpuLost as gone:
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
        if self._notes.roster.lost(identity.uuid, reason, self._notes.wall()):
            log.error("GPU %d (%s) at %s: %s", identity.index, identity.uuid, identity.pci_bus_id, reason)

    def close(self) -> None:
        for device in self._devices:
            device.close()
        self._devices = []
        self._events.close()
