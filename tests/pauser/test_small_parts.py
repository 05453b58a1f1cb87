"""The pure parts: framing and checking of messages, the record's lines, the three-failures rule, places."""

import json
import math
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucommons.model.process_identity import ProcessKey
from gpucommons.pauser.backend import Code, Failure, State, failure
from gpucommons.pauser.counters import Refusals
from gpucommons.pauser.places import default_record, known_records
from gpucommons.pauser.protocol import (
    MAX_REQUEST_BYTES,
    OF_A_PROCESS,
    VERSION,
    Hello,
    Message,
    MessageLines,
    Notice,
    NoticeKind,
    Operation,
    Paused,
    PauserProtocolError,
    PauserRequest,
    Reply,
    decode_message,
    decode_request,
    encode_message,
    encode_request,
)
from gpucommons.pauser.record import Entry, PauseRecord, RecordError, Stage, decode, encode
from unhurried import unhurried

PROCESSES = st.builds(ProcessKey, st.integers(1, 1 << 22), st.integers(0, 1 << 53))
PLAIN = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=60)
SECONDS = st.floats(0, 1e6, allow_nan=False)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=8,
)


@st.composite
def requests(draw: st.DrawFn) -> PauserRequest:
    operation = draw(st.sampled_from(Operation))
    number = draw(st.integers(1, 1 << 53))
    if operation not in OF_A_PROCESS:
        return PauserRequest(number, operation)
    is_lock, is_checkpoint = operation is Operation.LOCK, operation is Operation.CHECKPOINT
    return PauserRequest(
        number,
        operation,
        draw(PROCESSES),
        draw(st.integers(1, 60_000)) if is_lock else 0,
        draw(PLAIN) if is_lock else "",
        draw(st.integers(0, 1 << 53)) if is_checkpoint else 0,
    )


PAUSED = st.builds(Paused, PROCESSES, st.sampled_from(Stage), SECONDS, PLAIN, st.integers(0, 1 << 53))
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(Hello, st.integers(1, 1 << 22), PLAIN.map(lambda s: s[:32]), SECONDS, PLAIN, st.integers(0, 99)),
    st.builds(Notice, PROCESSES, PLAIN, st.sampled_from(NoticeKind)),
    st.builds(
        Reply,
        st.integers(1, 1 << 53),
        st.none() | st.builds(Failure, st.integers(-99, 999), PLAIN),
        SECONDS,
        st.none() | st.sampled_from(State),
        st.lists(PAUSED, max_size=3).map(tuple),
    ),
)


@unhurried(200)
@given(requests())
def test_a_request_comes_back_as_it_was(request: PauserRequest) -> None:
    line = encode_request(request)
    assert len(line) <= MAX_REQUEST_BYTES
    assert decode_request(line) == request


@unhurried(200)
@given(MESSAGES)
def test_a_message_comes_back_as_it_was(message: Message) -> None:
    assert decode_message(encode_message(message)) == message


@unhurried(300)
@given(st.binary(max_size=200) | ANYTHING.map(lambda value: json.dumps(value).encode()))
def test_whatever_comes_is_a_message_or_a_protocol_error(data: bytes) -> None:
    for decode_one in (decode_request, decode_message):
        with suppress(PauserProtocolError):
            decode_one(data)


@pytest.mark.long
@unhurried(300)
@given(requests(), st.data())
def test_a_request_with_one_field_changed_is_checked(request: PauserRequest, data: st.DataObject) -> None:
    document = json.loads(encode_request(request))
    name = data.draw(st.sampled_from([*document, "more"]))
    document[name] = data.draw(ANYTHING)
    try:
        found = decode_request(json.dumps(document).encode())
    except PauserProtocolError:
        return
    assert json.loads(encode_request(found)) == document


@unhurried(200)
@given(st.lists(st.binary(max_size=40).map(lambda b: b.replace(b"\n", b"")), max_size=6), st.data())
def test_lines_come_whole_however_they_are_cut(lines: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    parts = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    reader = MessageLines(40)
    assert [line for part in parts for line in reader.feed(part)] == lines


def test_a_line_without_end_is_refused() -> None:
    reader = MessageLines(10)
    assert reader.feed(b"0123456789") == []
    with pytest.raises(PauserProtocolError, match="longer than 10"):
        reader.feed(b"x")


def test_another_version_says_what_to_do() -> None:
    line = encode_message(Hello(1, "cuda", 10.0)).replace(f'"hello":{VERSION}'.encode(), b'"hello":99')
    with pytest.raises(PauserProtocolError, match=r"version 99 .* restart the older"):
        decode_message(line)


ENTRIES = st.builds(
    Entry,
    st.integers(1, 1 << 22),
    st.integers(0, 1 << 60),
    st.sampled_from(Stage),
    st.sampled_from(["cuda", "freeze"]),
    st.floats(0, 1e9).map(lambda value: round(value, 3)),
    PLAIN,
    st.integers(0, 1 << 60),
)


@unhurried(200)
@given(ENTRIES, ENTRIES, st.integers(0, 384))
def test_an_entry_is_read_as_written_and_a_torn_one_still_names_its_pid(one: Entry, two: Entry, cut: int) -> None:
    assert decode(one.pid, encode(one)) == one
    assert len(encode(one)) == len(encode(two)), "one replaces the other without a rest"
    torn = decode(one.pid, encode(one)[:cut])
    assert torn == one or (torn.pid == one.pid and torn.start_ticks is None)


@unhurried(300)
@given(st.binary(max_size=400) | ANYTHING.map(lambda value: json.dumps(value).encode()))
def test_no_content_of_the_record_is_an_error(content: bytes) -> None:
    found = decode(77, content)
    assert found.pid == 77
    assert math.isfinite(found.settles_at_s)


def test_an_entry_that_never_settles_is_not_believed(tmp_path: Path) -> None:
    record = PauseRecord.open(tmp_path / "paused")
    record.write(Entry(5, 5, Stage.LOCKING, settles_at_s=time.monotonic() + 1e6))
    (entry,) = record.entries()
    assert entry.settles_at_s < time.monotonic() + 100
    record.close()


def test_a_record_that_cannot_be_written_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="nothing is paused without it"):
        PauseRecord.open(tmp_path / "file" / "paused")
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(RecordError, match="cannot use the record"):
        PauseRecord.open(tmp_path / "link")
    assert PauseRecord.open_existing(tmp_path / "none") is None


def test_three_failures_in_a_row_leave_a_program_alone_for_a_minute() -> None:
    program, other = ProcessKey(1, 1), ProcessKey(2, 2)
    refusals = Refusals()
    for at_s in (0.0, 1.0):
        refusals.record_failure(program, failure(Code.TIMEOUT), at_s)
    refusals.forget_failures(program)
    for at_s in (2.0, 3.0, 4.0):
        assert refusals.remaining_s(program, at_s) == 0
        refusals.record_failure(program, failure(Code.NOT_SUPPORTED), at_s)
        refusals.record_failure(other, failure(Code.GONE), at_s)
    assert refusals.remaining_s(program, 5.0) == 59.0
    assert refusals.reason(program) == failure(Code.NOT_SUPPORTED).meaning
    assert refusals.remaining_s(other, 5.0) == 0
    assert refusals.remaining_s(program, 64.0) == 0
    refusals.record_failure(program, failure(Code.TIMEOUT), 64.0)
    assert refusals.remaining_s(program, 64.0) == 0, "it has three attempts again"
    refusals.record_failure(other, failure(Code.TIMEOUT), 1000.0)
    assert program not in refusals._failures, "who ended is forgotten"


def test_every_code_has_a_meaning() -> None:
    for code in Code:
        assert "CUDA error" not in failure(code).meaning
    assert failure(999).meaning == "CUDA error 999"
    assert failure(600, "x").meaning.endswith(": x")


def test_where_the_records_are() -> None:
    assert default_record({}, 0) == Path("/run/gpucommons/paused")
    assert default_record({"XDG_RUNTIME_DIR": "/run/user/7"}, 7) == Path("/run/user/7/gpucommons/paused")
    assert default_record({"XDG_RUNTIME_DIR": "relative"}, 7) == Path("/run/user/7/gpucommons/paused")
    assert known_records({}, 7) == [(Path("/run/user/7/gpucommons/paused"), 7)]
    assert (Path("/run/gpucommons-pauser/paused"), 0) in known_records({}, 0)
