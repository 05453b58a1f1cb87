"""A machine whose GPUs come, go and fall silent, clients that name them in every way, and a scheduler that knows only
what it has read.

A client's true device is what its name means on the machine when it starts. The scheduler never sees it: the world
uses it to check that no device has two exclusive holders.

One thing is assumed: a name that is in use does not change its meaning before a reading had it. So a GPU that is lost
or returns is read at once; a new one takes the next number, and may stay unread as long as the driver is silent, unless
it makes a UUID's beginning ambiguous that a client uses.
"""

from collections.abc import Sequence
from dataclasses import replace

from gpucommons.config.scheduler import SchedulerSettings
from gpucommons.scheduler.policy.devices import DeviceTable, GpuFacts, KnownGpu, resolve
from gpucommons.scheduler.policy.state import GIB, Client, Mode
from gpucommons.scheduler.protocol.wire import Version
from scheduler.world import Peer, World

GPUS = (
    KnownGpu("GPU-a1", 0),
    KnownGpu("GPU-b1", 1, mig=("MIG-1", "MIG-2")),
    KnownGpu("GPU-b2", 2),
    KnownGpu("GPU-c1", 3),
)
NAMES = (
    *("", "all", "default", "0", "1", "2", "3", "7", "0,1", "1,0", "²", "1:0", "1:1", "MIG-1", "MIG-2", "junk"),
    *("GPU-a1", "gpu-A1", "GPU-a", "GPU-b1", "GPU-b2", "GPU-b", "GPU-b2,GPU-a1", "GPU-c", "GPU-none"),
)


class NamedWorld(World):
    def __init__(self, settings: SchedulerSettings, count: int) -> None:
        """`count`: how many of GPUS the machine has at first. None of them was read yet."""
        super().__init__(settings)
        self.policy.remove_gpu(self.gpu)
        self.devices = DeviceTable(self.policy, self.now)
        self.machine: list[KnownGpu] = list(GPUS[:count])
        self._ever_read: set[str] = set()
        self._true: dict[int, str | None] = {}

    # Steps

    def join_named(self, name: str, version: Version, core: int) -> None:
        name = name if version == 2 else ""
        gpu = self.devices.find_queue(name, self.now)
        client = Client(next(self._ids), gpu, version=version, gpu_name=name)
        self.devices.place(client)
        self._true[client.id] = resolve(name, self.machine)
        self.peers.append(Peer(client))
        self._perform(self.policy.register(client, self.now, core))

    def ask(self, peer: Peer) -> None:
        """A revoked client that asks has stopped: that is how the scheduler reads it."""
        if peer.client.turn.revoked:
            peer.holds = peer.must_drop = False
        super().ask(peer)

    def leave(self, peer: Peer) -> None:
        super().leave(peer)
        self.devices.forget_unused(peer.client.gpu)

    def read(self, *, mig: bool = True, missed: int = 0, total_bytes: int = 16 * GIB) -> None:
        """The driver answers, with MIG devices or without. `missed` is left out, if it was read before."""
        read = [
            gpu
            for number, gpu in enumerate(self.machine)
            if not missed or number != missed or gpu.uuid not in self._ever_read
        ]
        self._ever_read |= {gpu.uuid for gpu in read}
        facts = [GpuFacts(gpu.uuid, gpu.index, total_bytes, mig=gpu.mig if mig else ()) for gpu in read]
        self._perform(self.devices.update(facts, self.now))

    def read_nothing(self) -> None:
        """The driver answers that it has no GPU, while clients use them."""
        self._perform(self.devices.update([], self.now))

    def plug(self) -> None:
        """One more GPU. One that was here before is read at once."""
        there = {gpu.uuid for gpu in self.machine}
        absent = [gpu for gpu in GPUS if gpu.uuid not in there]
        if absent:
            index = 1 + max((gpu.index for gpu in self.machine), default=-1)
            machine = [*self.machine, replace(absent[0], index=index)]
            names = {peer.client.gpu_name for peer in self.peers}
            if any(resolve(name, self.machine) not in (None, resolve(name, machine)) for name in names):
                self.read()
            self.machine = machine
            if absent[0].uuid in self._ever_read:
                self.read()

    def lose(self, which: int, renumber: bool) -> None:
        """The driver reports that a GPU is lost. It may number the others again."""
        if len(self.machine) > 1:
            self.read()
            del self.machine[which % len(self.machine)]
            if renumber:
                self.machine = [replace(gpu, index=index) for index, gpu in enumerate(self.machine)]
            self.read()

    # What must hold

    def check(self) -> None:
        super().check()
        for uuid in {uuid for uuid in self._true.values() if uuid is not None}:
            self._check_exclusive(self.holders(uuid))

    def holders(self, uuid: str) -> Sequence[Peer]:
        """The clients that may use the device now, those that were asked to stop included."""
        return [p for p in self.peers if p.holds and not p.client.turn.revoked and self._true[p.client.id] == uuid]

    def _check_exclusive(self, holders: Sequence[Peer]) -> None:
        exclusive = self.policy.terms.mode is Mode.SERIAL or any(peer.client.version == 1 for peer in holders)
        if exclusive and self.policy.terms.mode is not Mode.CONCURRENT:
            assert len(holders) <= 1, "one device has two exclusive holders"

    def check_every_name_is_resolved(self) -> None:
        """After a reading none is without a GPU, and those whose names fit none are in one queue."""
        if self.machine:
            assert "default" not in {peer.client.gpu.key for peer in self.peers}
        # A client that has its GPU keeps it, also when its name becomes ambiguous.
        astray = {peer.client.gpu.key for peer in self.peers if not self._was_matched(peer)}
        assert len(astray) <= 1

    def _was_matched(self, peer: Peer) -> bool:
        return peer.client.id not in self.devices._unmatched
