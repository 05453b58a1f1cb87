"""The log of turns: they begin and end as the scheduler reports, and the log is bounded."""

from demo_node import DemoNode
from gpucommons.faces.history.history import TurnLog
from gpucommons.model.snapshot import Readings
from played import snapshot_of

NODE = DemoNode(gpus=2)
UUID = NODE.gpu_reading(0).gpus[0].identity.uuid


def played(log: TurnLog, seconds: int) -> None:
    for elapsed_s in range(seconds):
        log.observe(snapshot_of(Readings(sharing=NODE.sharing(float(elapsed_s))), elapsed_s, wall_s=0.0))


def test_turns_follow_one_another_without_gaps() -> None:
    log = TurnLog()
    played(log, 70)
    turns = log.timeline[UUID]
    assert [turn.start_wall_s for turn in turns] == [7.0 * number for number in range(10)]
    assert [turn.end_wall_s for turn in turns] == [*(7.0 * number for number in range(1, 10)), None]
    assert len({turn.id for turn in turns}) == len(turns)
    assert [turn.label for turn in turns[:3]] == ["research/alice-job", "research/bob-job", "research/chen-job"]


def test_a_turn_seen_late_has_its_real_start() -> None:
    log = TurnLog()
    log.observe(snapshot_of(Readings(sharing=NODE.sharing(12.0)), 12.0, wall_s=0.0))
    (turn,) = log.timeline[UUID]
    assert turn.start_wall_s == 7.0


def test_old_turns_are_dropped_and_the_number_is_bounded() -> None:
    log = TurnLog(kept_s=20)
    played(log, 100)
    assert all(turn.end_wall_s is None or turn.end_wall_s >= 79 for turn in log.timeline[UUID])
    log = TurnLog(max_turns=4)
    played(log, 100)
    assert len(log.timeline[UUID]) == 4
    assert log.timeline[UUID][-1].end_wall_s is None


def test_a_second_turn_of_the_same_client_is_another_turn() -> None:
    log = TurnLog()
    sharing = NODE.sharing(0.0)
    clients = tuple(
        c._replace(turns=c.turns + 1, turn_s=0.5 if c.turn_s is not None else None) for c in sharing.clients
    )
    log.observe(snapshot_of(Readings(sharing=sharing), 0.0, wall_s=0.0))
    log.observe(snapshot_of(Readings(sharing=sharing._replace(clients=clients)), 1.0, wall_s=0.0))
    assert [turn.end_wall_s for turn in log.timeline[UUID]] == [1.0, None]


def test_without_a_scheduler_the_log_is_empty() -> None:
    log = TurnLog()
    played(log, 3)
    log.observe(snapshot_of(Readings(), 4.0))
    assert log.timeline == {}
