"""The record: what is written is read again, unless the holders may have worked in between."""

from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from gpucommons.idle.channels import Letter
from gpucommons.idle.escalation import StepsTaken
from gpucommons.idle.record import IdleRecord, IdleRecordFile
from gpucommons.model.idle import IdleMessage, IdlePeriod, IdleStep
from gpucommons.model.process_identity import ProcessKey

NOW_S = 1.8e9
times = st.floats(0, 1e9)
texts = st.text(max_size=20)
keys = st.builds(ProcessKey, st.integers(1, 9999), st.integers(1, 9999))
records = st.builds(
    IdleRecord,
    st.dictionaries(
        st.tuples(texts, texts),
        st.builds(IdlePeriod, times, st.just(()), st.frozensets(keys, max_size=3)),
        max_size=3,
    ),
    st.dictionaries(texts, st.builds(StepsTaken, times, st.none() | times, st.booleans(), st.booleans()), max_size=3),
    st.lists(
        st.builds(IdleMessage, texts, texts, times, st.sampled_from(IdleStep), texts, texts, times, st.booleans()),
        max_size=3,
    ).map(tuple),
    st.dictionaries(
        texts, st.lists(st.builds(Letter, texts, texts, texts, texts, texts, times), max_size=3).map(tuple), max_size=2
    ),
    texts,
)


@given(records)
def test_what_is_written_is_read_again(tmp_path_factory: object, record: IdleRecord) -> None:
    path = Path(tmp_path_factory.mktemp("idle")) / "idle.json"  # type: ignore[attr-defined]
    IdleRecordFile(path, "boot-1").write(record, NOW_S)
    assert IdleRecordFile(path, "boot-1").read(NOW_S + 3599) == record
    without = replace(record, periods={}, escalation={})
    assert IdleRecordFile(path, "boot-1").read(NOW_S + 3601) == without, "an hour without an agent"
    assert IdleRecordFile(path, "boot-1").read(NOW_S - 3601) == without, "the clock was set back"
    assert IdleRecordFile(path, "boot-2").read(NOW_S) == without, "the machine was restarted"
