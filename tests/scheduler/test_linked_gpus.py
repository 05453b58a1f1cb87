"""GPUs that a program on several of them links are one queue, and separate again when it ends."""

from itertools import count

from gpucommons.config.scheduler import SchedulerSettings
from gpucommons.scheduler.policy.devices import DeviceTable, GpuFacts
from gpucommons.scheduler.policy.policy import Policy
from gpucommons.scheduler.policy.state import GIB, PROGRAM, Action, Client, ClientStanding, Measure
from gpucommons.scheduler.protocol.wire import MessageType

GPUS = ("GPU-0", "GPU-1", "GPU-2")


class Node:
    """Three GPUs whose activity is never measured: clients take turns. Programs stop at once."""

    def __init__(self, settings: SchedulerSettings | None = None) -> None:
        self.now = 1000.0
        self.policy = Policy(settings or SchedulerSettings())
        self.devices = DeviceTable(self.policy, self.now)
        self.read()
        for gpu in self.policy.gpus.values():
            self.perform(self.policy.meter(gpu, True, self.now))
        self._ids = count(1)

    def read(self) -> None:
        facts = [GpuFacts(uuid, index, 10 * GIB) for index, uuid in enumerate(GPUS)]
        self.perform(self.devices.update(facts, self.now))

    def program(self, device: str, owner: str = "") -> Client:
        queue = self.devices.find_queue(device, self.now)
        client = Client(next(self._ids), queue, version=PROGRAM, owner=owner)
        client.device = device
        self.perform(self.policy.register(client, self.now))
        self.perform(self.policy.join(client, self.now))
        return client

    def link(self, *groups: tuple[str, ...]) -> None:
        self.perform(self.devices.link(groups, self.now))

    def perform(self, actions: list[Action]) -> None:
        for action in actions:
            if not isinstance(action, Measure) and action.message is MessageType.DROP_LOCK:
                self.perform(list(self.policy.record_pause(action.client, self.now)))

    def run(self, seconds: float) -> list[frozenset[int]]:
        """The clients that ran at the same time on any GPU, each time that this changed."""
        end, seen = self.now + seconds, []
        while (due := self.policy.next_deadline_s()) <= end:
            self.now = max(self.now, due)
            self.perform(self.policy.tick(self.now))
            seen.append(frozenset(id for gpu in self.policy.gpus.values() for id in gpu.turns.running))
        self.now = end
        return seen


def test_a_program_on_two_gpus_runs_on_both_at_once_or_not_at_all() -> None:
    node = Node()
    one, other, free = (node.program(gpu, "uid:1001") for gpu in GPUS)
    node.link(("GPU-0", "GPU-1"))
    wide = node.program("GPU-0", "uid:1002")
    # Two programs of one owner and one of another: the owners take turns.
    node.run(5.0)
    seen = node.run(20.0)
    assert {wide.id, free.id} in seen
    assert not any(wide.id in running and running & {one.id, other.id} for running in seen)
    assert any(one.id in running for running in seen)
    assert any(other.id in running for running in seen)
    assert all(free.id in running for running in seen), "a GPU that is not linked is not affected"


def test_gpus_separate_when_no_program_links_them() -> None:
    node = Node()
    one, other = node.program("GPU-0"), node.program("GPU-1")
    node.link(("GPU-0", "GPU-1"))
    assert one.gpu is other.gpu
    assert list(one.gpu.devices) == ["GPU-0", "GPU-1"]
    assert one.gpu.memory.total_bytes == 20 * GIB
    node.run(5.0)
    node.link()
    node.run(5.0)
    assert (one.gpu.key, other.gpu.key) == ("GPU-0", "GPU-1")
    assert [list(client.gpu.devices) for client in (one, other)] == [["GPU-0"], ["GPU-1"]]
    assert one.gpu.memory.total_bytes == 10 * GIB
    assert one.standing is other.standing is ClientStanding.RUNNING


def test_a_reading_keeps_the_links() -> None:
    node = Node()
    node.program("GPU-1")
    node.link(("GPU-0", "GPU-1"))
    node.read()
    assert node.policy.gpus["GPU-0"].memory.total_bytes == 20 * GIB
    assert node.devices.find_queue("1", node.now).key == "GPU-0"
    assert node.devices.is_linked(node.policy.gpus["GPU-1"])
    assert not node.devices.is_linked(node.policy.gpus["GPU-0"])
