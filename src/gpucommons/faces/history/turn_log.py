"""The recent turns on each shared GPU, read from each snapshot. Bounded, in memory.

The start of a turn is exact, because the scheduler reports how long a turn has lasted. Its end is exact to one
snapshot. A turn that began and ended between two snapshots is not seen.
"""

from gpucommons.model.sharing import ClientSharing, Timeline, Turn
from gpucommons.model.snapshot import Snapshot

KEPT_S = 600.0
MOST_TURNS = 300


class TurnLog:
    """Pass every snapshot to `observe`; `timeline` is by GPU, oldest turn first."""

    def __init__(self, kept_s: float = KEPT_S, most_turns: int = MOST_TURNS) -> None:
        self._kept_s = kept_s
        self._most_turns = most_turns
        self.timeline: Timeline = {}

    def observe(self, snapshot: Snapshot) -> None:
        sharing = snapshot.readings.sharing
        if sharing is None:
            self.timeline = {}
            return
        now_s = snapshot.wall_s
        clients = {client.client_id: client for client in sharing.clients}
        self.timeline = {
            gpu.uuid: self._on_gpu(
                self.timeline.get(gpu.uuid, ()), [clients[id] for id in gpu.running if id in clients], now_s
            )
            for gpu in sharing.gpus
        }

    def _on_gpu(self, known: tuple[Turn, ...], running: list[ClientSharing], now_s: float) -> tuple[Turn, ...]:
        going = {(client.client_id, client.turns): client for client in running}
        kept: list[Turn] = []
        for turn in known:
            if turn.end_wall_s is None and going.pop(_mark(turn), None) is None:
                turn = Turn(turn.id, turn.client_id, turn.label, turn.uid, turn.start_wall_s, now_s)
            if turn.end_wall_s is None or now_s - turn.end_wall_s <= self._kept_s:
                kept.append(turn)
        kept.extend(_begun(client, now_s) for client in going.values())
        return tuple(kept[-self._most_turns :])


def _begun(client: ClientSharing, now_s: float) -> Turn:
    start_s = now_s - (client.turn_s or 0.0)
    label = client.name or client.client_id
    return Turn(f"{client.client_id}.{client.turns}", client.client_id, label, client.uid, start_s)


def _mark(turn: Turn) -> tuple[str, int]:
    client_id, _, number = turn.id.rpartition(".")
    return client_id, int(number)
