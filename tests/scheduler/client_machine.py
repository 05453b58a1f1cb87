"""What every state machine over a world of clients has: clients that leave, ask and release, and the invariants."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scheduler.world import Peer, World

MANY = 8
WHO = st.integers(0, MANY - 1)
with_clients = precondition(lambda self: bool(self.world.peers))
with_room = precondition(lambda self: len(self.world.peers) < MANY)


class ClientMachine(RuleBasedStateMachine):
    """The machine makes its `world` at its start, and checks at its end what is to be true in the end."""

    world: World

    def pick(self, who: int) -> Peer:
        return self.world.peers[who % len(self.world.peers)]

    @with_clients
    @rule(who=WHO)
    def leave(self, who: int) -> None:
        self.world.leave(self.pick(who))

    @with_clients
    @rule(who=WHO)
    def ask(self, who: int) -> None:
        self.world.ask(self.pick(who))

    @with_clients
    @rule(who=WHO)
    def release(self, who: int) -> None:
        self.world.release(self.pick(who))

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "world"):
            self.world.check()
