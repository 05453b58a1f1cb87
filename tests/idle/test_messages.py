"""The texts: one paragraph, with what to do, whatever characters names have."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucommons.idle.messages import HeldIdle, IdleAction, event_sentence, subject_of, text_of
from gpucommons.model.allocations import WorkloadKind
from gpucommons.model.idle import IdleStep

NOTIFY, REMIND, ACT = IdleStep.NOTIFY, IdleStep.REMIND, IdleStep.ACT
PROGRAM = HeldIdle("k", WorkloadKind.PROCESS, "train.py", "w", "alice", "alice", ("3",), 7200.0, None, (4711,))


def test_the_first_message_of_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    held = PROGRAM._replace(since_wall_s=1_794_809_520.0, can_park=True)
    assert text_of(held, NOTIFY, IdleAction.PARK, 14_400.0, "gpu1") == (
        "GPU 3 of gpu1 has been held by your train.py (pid 4711) since 16 Nov 06:12, and not used by it for 2 h. "
        "To release it: end the program, such as with `kill 4711`; `gpucommons park 4711` keeps it and moves its GPU "
        "memory to host memory. If this does not change, its GPU memory is moved to host memory after 4 h more. "
        "To be left alone: ask the administrator for an exemption."
    )
    assert subject_of(held, NOTIFY, IdleAction.PARK, "gpu1") == "gpu1: GPU 3 held idle for 2 h"
    assert event_sentence(held) == "train.py (pid 4711) has not used GPU 3 for 2 h"


@pytest.mark.parametrize(
    ("kind", "name", "workload_id", "expected"),
    [
        (WorkloadKind.LEASE, "train.py", "lease/12", "end the command, or run `gpucommons cancel 12`"),
        (WorkloadKind.CONTAINER, "my lab", "c0ffee", "`docker stop 'my lab'`"),
        (WorkloadKind.POD, "train-0", "uid", "`kubectl -n ml delete pod train-0`"),
        (WorkloadKind.JOB, "88", "job/88", "`scancel 88`"),
    ],
)
def test_each_kind_of_holder_reads_how_to_release_it(
    kind: WorkloadKind, name: str, workload_id: str, expected: str
) -> None:
    held = HeldIdle("k", kind, name, workload_id, "alice", "alice", ("0", "1"), 7200.0, namespace="ml")
    text = text_of(held, REMIND, IdleAction.NONE, 0.0, "gpu1")
    assert text.startswith("Reminder: GPUs 0, 1 of gpu1 have been held by your ")
    assert f"To release them: {expected}" in text or expected in text
    assert "If this does not change" not in text
    assert ("gpucommons.idle=no" in text) == (kind in (WorkloadKind.CONTAINER, WorkloadKind.POD))


def test_what_the_agent_did() -> None:
    parked = text_of(PROGRAM, ACT, IdleAction.PARK, 0.0, "gpu1")
    assert "Nothing is lost" in parked
    assert "`gpucommons wake 4711`" in parked
    lease = PROGRAM._replace(kind=WorkloadKind.LEASE, workload_id="lease/12")
    ended = text_of(lease, ACT, IdleAction.END_LEASE, 0.0, "gpu1")
    assert ended.startswith("Your lease 12 (train.py) was ended, because it had not used GPU 3 of gpu1 for 2 h.")
    subject = subject_of(lease, ACT, IdleAction.END_LEASE, "gpu1")
    assert subject == "gpu1: lease 12 was ended after 2 h without use of GPU 3"


@given(
    st.text(max_size=200),
    st.text(max_size=200),
    st.sampled_from(WorkloadKind),
    st.lists(st.integers(1, 99999), max_size=20),
    st.sampled_from(IdleStep),
)
def test_no_name_breaks_the_line(
    name: str, namespace: str, kind: WorkloadKind, pids: list[int], step: IdleStep
) -> None:
    held = HeldIdle("k", kind, name, "lease/1", "alice", "alice", ("0",), 9000.0, 1.7e9, tuple(pids), namespace)
    action = IdleAction.END_LEASE if kind is WorkloadKind.LEASE else IdleAction.PARK
    for text in (text_of(held, step, action, 60.0, "gpu1"), subject_of(held, step, action, "gpu1")):
        assert text.isprintable()
        assert len(text) < 1500
