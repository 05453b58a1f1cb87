"""How a turn begins and how its end is requested: the transition, the counters and the message. It decides nothing."""

from gpucommons.scheduler.policy.core_quotas import CoreQuotas
from gpucommons.scheduler.policy.state import DROP_RESEND_S, Action, Client, DropReason, GpuQueue, Send
from gpucommons.scheduler.policy.transitions import Transitions
from gpucommons.scheduler.protocol.wire import MessageType


class Grants:
    def __init__(self, quotas: CoreQuotas, transitions: Transitions) -> None:
        self._quotas = quotas
        self._transitions = transitions

    def grant(
        self, gpu: GpuQueue, client: Client, now: float, actions: list[Action], guest_until_s: float | None = None
    ) -> None:
        """A waiting client's turn begins; `guest_until_s`: in the room that others leave over."""
        self._transitions.begin_turn(gpu, client, now, guest_until_s)
        if client.wait_for_mem_sent:
            client.wait_for_mem_sent = False
            gpu.mem_available += 1
            actions.append(Send(client, MessageType.MEM_AVAILABLE))
        actions.append(client.lock_ok)

    def drop(self, gpu: GpuQueue, client: Client, reason: DropReason, now: float, actions: list[Action]) -> None:
        """Sends the first DROP_LOCK of a turn."""
        if client.bucket is not None:
            self._quotas.settle(client, now)
        client.drop_s = now
        client.drop_again_s = now + DROP_RESEND_S
        client.drop_reason = reason
        gpu.draining[client.id] = client
        gpu.drops[reason] += 1
        actions.append(Send(client, MessageType.DROP_LOCK))
