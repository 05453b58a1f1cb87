"""GPUs on which a test begins and ends the turns: accounts and verdicts of the policy, without its decisions."""

from itertools import count

from gpucommons.config.scheduler import SchedulerSettings
from gpucommons.model.gpu import DeviceActivity
from gpucommons.scheduler.policy import attained
from gpucommons.scheduler.policy.attained import own_service_s, service_s
from gpucommons.scheduler.policy.core_limits import CoreQuotas
from gpucommons.scheduler.policy.state import (
    GIB,
    PROGRAM,
    Action,
    Client,
    ClientStanding,
    DropReason,
    GpuQueue,
    Mode,
    Terms,
)
from gpucommons.scheduler.policy.transitions import Grants, Transitions

# The longest quantum.
LEAD_S = 10.0


class DirectedGpus:
    """Each GPU has 10 GiB, of which clients may use 9."""

    def __init__(self, **changes: object) -> None:
        settings = SchedulerSettings(**changes)  # type: ignore[arg-type]
        self.terms = Terms(settings)
        self.quotas = CoreQuotas(settings)
        self.transitions = Transitions(self.quotas, self.terms)
        self.grants = Grants(self.quotas, self.transitions)
        self.now = 1000.0
        self._ids = count(1)
        self.gpu = self.add_gpu()

    def add_gpu(self) -> GpuQueue:
        gpu = GpuQueue("GPU", 0, self.now, 2.0)
        self.transitions.resize(gpu, 10 * GIB, 9 * GIB, known=False)
        attained.set_lead(gpu, LEAD_S)
        return gpu

    def enter(
        self,
        owner: str = "",
        gib: float = 0,
        *,
        sm: float | None = None,
        gpu: GpuQueue | None = None,
        version: int = 2,
    ) -> Client:
        """`sm` is its activity alone, if it is known."""
        gpu = gpu or self.gpu
        client = Client(next(self._ids), gpu, owner=owner, version=version)  # type: ignore[arg-type]
        self.transitions.enter(gpu, client)
        self.transitions.claim_memory(client, round(gib * GIB))
        if sm is not None:
            gpu.phases.coruns.record_activity((client.id,), DeviceActivity(sm), self.now)
        return client

    def enter_program(self, owner: str = "", *, gpu: GpuQueue | None = None) -> Client:
        return self.enter(owner, gpu=gpu, version=PROGRAM)

    def ask(self, client: Client) -> None:
        self.transitions.enqueue(client.gpu, client, self.now)

    def begin(self, client: Client, until_s: float | None = None) -> None:
        """A turn as the anchor, or with `until_s` in the room that others leave over."""
        if client.standing is ClientStanding.IDLE:
            self.ask(client)
        client.gpu.turns.clock.advance(self.now)
        self.transitions.begin_turn(client.gpu, client, self.now, until_s)

    def drop(self, client: Client) -> None:
        actions: list[Action] = []
        self.grants.drop(client.gpu, client, DropReason.QUANTUM, self.now, actions)

    def end(self, client: Client) -> None:
        client.gpu.turns.clock.advance(self.now)
        self.transitions.end_turn(client.gpu, client, self.now)

    def hand_over(self, old: Client, new: Client, *, fast: bool) -> None:
        """The anchor releases its turn, and `new` begins one. `fast`: in one step."""
        if fast:
            self.transitions.hand_over(old.gpu, old, new, self.now)
        else:
            self.end(old)
            self.begin(new)

    def revoke(self, client: Client, held_gib: float) -> None:
        self.transitions.measure_memory(client, round(held_gib * GIB), None)
        self.drop(client)
        self.transitions.revoke(client.gpu, client, self.now)

    def run(self, client: Client, seconds: float, until_s: float | None = None) -> None:
        """A turn that ends as soon as it is asked to."""
        self.begin(client, until_s)
        self.now += seconds
        self.drop(client)
        self.end(client)

    def leave(self, client: Client) -> None:
        self.transitions.leave(client.gpu, client)

    def set_mode(self, mode: Mode) -> None:
        self.terms.set_mode(mode)

    def meter(self, available: bool = True) -> None:
        self.gpu.phases.metered = available

    def service(self, *clients: Client) -> list[float]:
        """Of their owners."""
        return [round(service_s(client.service.line, self.now), 6) for client in clients]

    def own_service(self, *clients: Client) -> list[float]:
        return [round(own_service_s(client, self.now), 6) for client in clients]
