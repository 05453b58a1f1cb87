"""MPS for leases: which daemon a lease uses, whether it runs, and what its client sets. For the lease thread."""

from collections.abc import Iterable

from gpucommons.leases.protocol.messages import Line
from gpucommons.leases.service.desk import MPS_OFF
from gpucommons.model.leases import Lease
from gpucommons.model.mps import MpsReading
from gpucommons.mps.plan import DaemonStage, MpsKey
from gpucommons.mps.supervisor import MpsSupervisor


class LeaseMps:
    """`mode` is the setting: what new leases use. Leases that are held keep the daemon that they have."""

    def __init__(self, supervisor: MpsSupervisor, mode: str) -> None:
        self._supervisor = supervisor
        self.mode = mode

    def obstacle(self, uid: int) -> str:
        """Why commands of this user cannot run under MPS; empty where they can."""
        return MPS_OFF if self.mode == "off" else self._supervisor.control.obstacle(uid)

    def serve(self, leases: Iterable[Lease]) -> None:
        """Starts the daemons that these leases need, and stops others after a while."""
        self._supervisor.need(self._key(lease) for lease in leases if lease.request.mps)

    def failure(self, lease: Lease) -> str:
        """Why its daemon does not start, after some attempts."""
        daemon = self._supervisor.daemon(self._key(lease))
        return daemon.reason if daemon is not None and daemon.is_given_up else ""

    def terms(self, lease: Lease) -> Line | None:
        """What the client sets for its command; None while the daemon does not run."""
        key = self._key(lease)
        daemon = self._supervisor.daemon(key)
        if daemon is None or daemon.stage is not DaemonStage.RUNNING:
            return None
        # It may have died since the supervisor looked: a command would run without limits.
        if not self._supervisor.control.is_alive(key):
            return None
        places = self._supervisor.control.places(key)
        return {
            "pipe_directory": str(places.pipes),
            "log_directory": str(places.logs),
            "sm_percent": lease.request.sm_percent,
            "memory_bytes": lease.request.memory_bytes,
        }

    def reading(self) -> MpsReading:
        return self._supervisor.reading()

    def _key(self, lease: Lease) -> MpsKey:
        return MpsKey(lease.request.uid if lease.request.mps == "per_user" else None, lease.slots[0])
