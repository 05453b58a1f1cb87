"""Which processes on a leased GPU are paused, and the sentence for those that are not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucommons.model.leases import TrespassReport
from gpucommons.model.process_identity import ProcessKey
from gpucommons.scheduler.programs.exemptions import (
    Circumstances,
    ShareScope,
    TrespassVerdicts,
    divide,
    judge_trespassers,
)
from gpucommons.scheduler.programs.jobs import GpuUser
from scheduler.programs.node import Node, Proc
from scheduler.programs.strategies import NODES

ALL = Circumstances(ShareScope.ALL, agent_uid=1000)


def report(*processes: GpuUser) -> TrespassReport:
    return TrespassReport({process.key: frozenset({"7"}) for process in processes if process.key is not None})


def judged(*processes: Proc, around: Circumstances = ALL, own_only: bool = False) -> TrespassVerdicts:
    rows = Node(processes).read().processes
    return judge_trespassers(rows, report(*rows), around, own_only, 0.0)


def test_only_the_processes_of_the_report_are_paused() -> None:
    rows = Node([Proc(10), Proc(11), Proc(12)]).read().processes
    found = judge_trespassers(rows, report(rows[1]), ALL, False, 0.0)
    assert [key.pid for key in found.pause] == [11]
    assert set(found.pause.values()) == {rows[1].uses[0].device}
    assert found.spared == {}


def test_an_agent_without_rights_says_what_is_missing() -> None:
    found = judged(Proc(10, uid=1000), Proc(11, uid=1001), own_only=True)
    assert [key.pid for key in found.pause] == [10]
    ((key, sentence),) = found.spared.items()
    assert (key.pid, "run it as root" in sentence) == (11, True)


def test_what_cannot_be_paused_is_spared_with_the_reason() -> None:
    display, plain = Proc(10, name="Xorg"), Proc(11)
    found = judged(display, plain, around=Circumstances(ShareScope.ALL, 0, obstacle="no driver"))
    assert found.pause == {}
    assert sorted(found.spared.values()) == [
        "it is a display server (Xorg)",
        "no program can be paused: no driver",
    ]


@pytest.mark.long
@given(NODES, st.sets(st.integers(2, 400)), st.booleans())
def test_each_trespasser_is_paused_or_spared_and_no_other_process_is(
    node: Node, trespassers: set[int], own_only: bool
) -> None:
    rows = node.read().processes
    found = report(*(row for row in rows if row.pid in trespassers))
    verdicts = judge_trespassers(rows, found, ALL, own_only, 0.0)
    assert not verdicts.pause.keys() & verdicts.spared.keys()
    seen = {row.key for row in rows}
    assert verdicts.pause.keys() | verdicts.spared.keys() == found.leases.keys() & seen
    exempt: set[ProcessKey] = set()
    for one in divide((row for row in rows if row.key in found.leases), ALL, 0.0).exempt:
        exempt |= one.program.process_keys
    assert not verdicts.pause.keys() & exempt
