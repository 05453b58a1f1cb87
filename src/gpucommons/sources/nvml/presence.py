"""The GPUs that this machine should have: those on the PCI bus, and those that the driver listed in the last days.

NVML lists only what the driver could open. A GPU that fails at boot is missing from its list, and a driver that was not
built for the new kernel lists nothing: the PCI bus and the record show what is missing. A GPU that has left the bus is
in the record alone.
"""

import _ctypes
import ctypes
import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from gpucommons.base.files import replace_state_file
from gpucommons.model.gpu import GpuIdentity, GpuReading
from gpucommons.sources.source import SourceAbsent

log = logging.getLogger(__name__)

REMEMBERED_S: Final = 7 * 86400.0
_REFRESH_S: Final = 3600.0
_NVIDIA: Final = "0x10de"
_DISPLAY_CONTROLLER: Final = "0x03"
# A GPU that was given to a virtual machine is not this kernel's.
_GIVEN_AWAY: Final = frozenset({"vfio-pci", "nvgrace_gpu_vfio_pci", "xen-pciback", "pci-stub"})


def read_pci_gpus(sysfs: Path) -> tuple[str, ...]:
    """The PCI addresses of NVIDIA's GPUs that this kernel may drive, in order; empty where there is no PCI bus."""
    root = sysfs / "bus/pci/devices"
    try:
        names = sorted(os.listdir(root))
    except OSError:
        return ()
    return tuple(name for name in names if _is_gpu(root / name))


def _is_gpu(device: Path) -> bool:
    try:
        if (device / "vendor").read_text().strip() != _NVIDIA:
            return False
        if not (device / "class").read_text().startswith(_DISPLAY_CONTROLLER):
            return False
        # A virtual function of SR-IOV belongs to a virtual machine.
        return not (device / "physfn").exists() and (device / "driver").resolve().name not in _GIVEN_AWAY
    except (OSError, ValueError):
        return False


def same_place(pci_address: str) -> str:
    """One spelling: NVML writes 00000000:18:00.0 or 0000:3A:00.0, the kernel 0000:18:00.0."""
    domain, _, rest = pci_address.lower().partition(":")
    return f"{domain[-4:].rjust(4, '0')}:{rest}"


def sees_every_gpu(environment: Mapping[str, str]) -> bool:
    """False in a container that was given some GPUs of the machine: others on the bus are then not missing."""
    return environment.get("NVIDIA_VISIBLE_DEVICES", "all") == "all"


class Remembered(NamedTuple):
    """A GPU that the driver listed, and when it did so last."""

    identity: GpuIdentity
    last_seen_wall_s: float


class GpuRecord:
    """The GPUs of the last days, in a file. A record that cannot be read or written costs nothing but itself."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written: frozenset[str] = frozenset()
        self._written_wall_s = 0.0
        self._complains = True

    def load(self, now_wall_s: float) -> list[Remembered]:
        try:
            rows = json.loads(self._path.read_bytes())
            recorded = [
                Remembered(
                    GpuIdentity(str(row["uuid"]), int(row["index"]), str(row["name"]), str(row["pci_bus_id"])),
                    float(row["last_seen_unix_s"]),
                )
                for row in rows
            ]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, TypeError, KeyError) as error:
            log.warning("%s: cannot be read, GPUs of earlier days are not known: %s", self._path, error)
            return []
        return [gpu for gpu in recorded if 0 <= now_wall_s - gpu.last_seen_wall_s < REMEMBERED_S]

    def keep(self, present: Iterable[GpuIdentity], lost: Iterable[Remembered], now_wall_s: float) -> None:
        """Written when the GPUs change, and every hour."""
        rows = [*(Remembered(identity, now_wall_s) for identity in present), *lost]
        uuids = frozenset(row.identity.uuid for row in rows)
        if uuids == self._written and 0 <= now_wall_s - self._written_wall_s < _REFRESH_S:
            return
        self._written, self._written_wall_s = uuids, now_wall_s
        content = [
            {
                "uuid": row.identity.uuid,
                "index": row.identity.index,
                "name": row.identity.name,
                "pci_bus_id": row.identity.pci_bus_id,
                "last_seen_unix_s": round(row.last_seen_wall_s),
            }
            for row in rows
        ]
        try:
            replace_state_file(self._path, json.dumps(content).encode())
        except OSError as error:
            if self._complains:
                log.warning("%s: cannot be written, lost GPUs are forgotten at a restart: %s", self._path, error)
            self._complains = False


# The reader of the GPUs, once there is a driver to ask.

# Detail and remedy where there is none.
NO_LIBRARY: Final = (
    "no NVIDIA driver: libnvidia-ml.so.1 is not found",
    "install the NVIDIA driver; in a container, run it with the NVIDIA runtime (--gpus all)",
)


def has_library() -> bool:
    """Whether the driver's library can be loaded. It is not kept loaded: an upgrade may replace it."""
    try:
        _ctypes.dlclose(ctypes.CDLL("libnvidia-ml.so.1")._handle)
    except OSError:
        return False
    return True


class ReadsGpus(Protocol):
    def read(self) -> GpuReading: ...


class DriverReader:
    """`load` imports and makes the reader. Without a driver it is not in memory.

    It is loaded at once where there is a driver, so that the first snapshot has the GPUs.
    """

    def __init__(self, sysfs: Path, load: Callable[[], ReadsGpus]) -> None:
        self._sysfs = sysfs
        self._load = load
        self._reader = load() if has_library() else None

    def read(self) -> GpuReading:
        if self._reader is None:
            # A missing driver is a fault where the bus has a GPU: the reader reports it.
            if not has_library() and not read_pci_gpus(self._sysfs):
                raise SourceAbsent(*NO_LIBRARY)
            self._reader = self._load()
        return self._reader.read()
