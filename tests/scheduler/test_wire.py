"""Frames: what the bytes of clients and of nvsharectl mean, however they are cut, and what garbage comes to."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucommons.scheduler.protocol.wire import (
    CONTROL_ID,
    PLAIN,
    ControlRequest,
    Decoder,
    LockReleased,
    MemoryUpdate,
    MessageType,
    ProtocolError,
    Received,
    Register,
    ReplyDecoder,
    RequestLock,
    Version,
    encode,
    encode_status,
)

T = MessageType
VERSIONS: tuple[Version, ...] = (1, 2)


def decode(*pieces: bytes) -> list[Received]:
    decoder = Decoder()
    return [message for piece in pieces for message in decoder.feed(piece)]


def registered(version: Version) -> Decoder:
    decoder = Decoder()
    decoder.feed(encode(version, T.REGISTER, pod="p", namespace="n"))
    return decoder


def test_the_layout_is_the_one_of_the_c_structs() -> None:
    v1 = encode(1, T.REGISTER, pod="pod", namespace="space", id=0x1122334455667788, data=b"data")
    assert len(v1) == 537
    assert v1[0] == 1
    assert v1[1:5] == b"pod\0"
    assert v1[255:261] == b"space\0"
    assert v1[509:517] == bytes.fromhex("8877665544332211")
    assert v1[517:522] == b"data\0"
    v2 = encode(
        2,
        T.MEM_UPDATE,
        pod="pod",
        namespace="space",
        gpu="GPU-1",
        id=1,
        data=b"d",
        memory_usage_bytes=2,
        memory_limit_bytes=3,
        core_limit_percent=4,
        pid=-5,
    )
    assert len(v2) == 659
    assert v2[0:3] == b"\x09\x02\x00"
    assert v2[3:6] == b"pod"
    assert v2[257:262] == b"space"
    assert v2[511:516] == b"GPU-1"
    assert v2[607] == 1
    assert v2[615:616] == b"d"
    assert (v2[635], v2[643], v2[651]) == (2, 3, 4)
    assert v2[655:659] == b"\xfb\xff\xff\xff"


@pytest.mark.parametrize("version", VERSIONS)
def test_what_a_client_says(version: Version) -> None:
    decoder = Decoder()
    (register,) = decoder.feed(encode(version, T.REGISTER, pod="p", namespace="n", gpu="1", pid=7))
    assert register == (Register(1, "p", "n") if version == 1 else Register(2, "p", "n", "1", 7))
    assert decoder.version == version
    assert list(decoder.feed(encode(version, T.REQ_LOCK))) == [RequestLock()]
    assert list(decoder.feed(encode(version, T.LOCK_RELEASED))) == [LockReleased()]
    if version == 2:
        assert list(decoder.feed(encode(2, T.MEM_UPDATE, memory_usage_bytes=1 << 40))) == [MemoryUpdate(1 << 40)]


@pytest.mark.parametrize("version", VERSIONS)
def test_what_nvsharectl_says(version: Version) -> None:
    for type, data, control in (
        (T.SCHED_ON, b"", ControlRequest(T.SCHED_ON)),
        (T.SCHED_OFF, b"", ControlRequest(T.SCHED_OFF)),
        (T.SET_TQ, b"45", ControlRequest(T.SET_TQ, 45)),
    ):
        frame = encode(version, type, id=CONTROL_ID, data=data)
        assert decode(frame) == [control]
        assert decode(frame[:530], frame[530:]) == [control]


def test_a_client_id_goes_out_as_sixteen_hex_digits() -> None:
    for version in VERSIONS:
        (reply,) = ReplyDecoder(version).feed(encode_status(version, True, 0xABC, 30))
        assert (reply.type, reply.data) == (T.SCHED_ON, "0000000000000abc")
        assert reply.core_limit_percent == (30 if version == 2 else 0)
    assert [frame[:1] for frame in PLAIN[1][1:]] == [bytes([type]) for type in T]


@pytest.mark.parametrize(
    ("garbage", "reason"),
    [
        (b"\x00", "unexpected_first_frame"),
        (b"\x04", "unexpected_first_frame"),
        (encode(2, T.SCHED_OFF), "no_control_id"),
        (encode(1, T.SET_TQ, id=CONTROL_ID, data=b"0"), "bad_quantum"),
        (encode(1, T.SET_TQ, id=CONTROL_ID, data=b"9" * 20), "bad_quantum"),
        (encode(2, T.SET_TQ, id=CONTROL_ID, data=b"\xff"), "bad_quantum"),
    ],
)
def test_a_first_frame_that_is_none(garbage: bytes, reason: str) -> None:
    decoder = Decoder()
    assert list(decoder.feed(garbage)) == [ProtocolError(reason)]
    assert list(decoder.feed(encode(2, T.REGISTER, pod="x"))) == []
    assert list(decoder.feed(encode(2, T.REQ_LOCK))) == []


@pytest.mark.parametrize("version", VERSIONS)
def test_types_that_a_client_must_not_send(version: Version) -> None:
    for type in (T.LOCK_OK, T.DROP_LOCK, T.SCHED_ON, T.SET_TQ, T.UPDATE_LIMIT):
        assert list(registered(version).feed(encode(version, type))) == [ProtocolError("unexpected_type")]
    for byte in (0, 15, 255):
        frame = bytes([byte]) + encode(version, T.REQ_LOCK)[1:]
        assert list(registered(version).feed(frame)) == [ProtocolError("unknown_type")]
    decoder = Decoder()
    decoder.feed(encode(version, T.SCHED_ON, id=CONTROL_ID))
    assert list(decoder.feed(encode(version, T.REQ_LOCK))) == [ProtocolError("unexpected_type")]


@pytest.mark.parametrize("version", VERSIONS)
def test_names_of_every_kind(version: Version) -> None:
    for name in ('quo"te', "line\nbreak", "../../etc", "x" * 254, "ü" * 127, "\t\\"):
        (register,) = decode(encode(version, T.REGISTER, pod=name, namespace=name))
        assert isinstance(register, Register)
        assert register.pod == register.namespace == name
    frame = bytearray(encode(version, T.REGISTER))
    at = 1 if version == 1 else 3
    frame[at : at + 2] = b"a\xff"
    (register,) = decode(bytes(frame))
    assert isinstance(register, Register)
    assert register.pod == "a\\xff"


MESSAGES = st.sampled_from(
    [
        (T.REQ_LOCK, {}),
        (T.LOCK_RELEASED, {}),
        (T.REGISTER, {"pod": "again"}),
        (T.MEM_UPDATE, {"memory_usage_bytes": 12345}),
        (T.DROP_LOCK, {}),
    ]
)


@given(
    version=st.sampled_from(VERSIONS),
    messages=st.lists(MESSAGES, max_size=8),
    cuts=st.lists(st.integers(0, 659 * 9), max_size=20),
)
def test_how_the_stream_is_cut_changes_nothing(
    version: Version, messages: list[tuple[MessageType, dict[str, object]]], cuts: list[int]
) -> None:
    frames = encode(version, T.REGISTER, pod="p")
    for type, fields in messages:
        frames += encode(version, type, **fields)  # type: ignore[arg-type]
    whole = decode(frames)
    edges = sorted({0, len(frames), *(cut for cut in cuts if cut < len(frames))})
    assert decode(*(frames[a:b] for a, b in pairwise(edges))) == whole
    expected = 1 + next(
        (place + 1 for place, (type, _) in enumerate(messages) if _is_wrong(version, type)), len(messages)
    )
    assert len(whole) == expected


def _is_wrong(version: Version, type: MessageType) -> bool:
    return type is T.DROP_LOCK or (version == 1 and type is T.MEM_UPDATE)


@given(st.lists(st.binary(max_size=1500), max_size=6))
def test_any_bytes_at_all_do_no_harm(pieces: list[bytes]) -> None:
    decoder = Decoder()
    for piece in pieces:
        messages = decoder.feed(piece)
        errors = [message for message in messages if isinstance(message, ProtocolError)]
        assert len(errors) <= 1
        assert not errors or messages[-1] is errors[0]


@pytest.mark.long
def test_a_hundred_thousand_mutations_do_no_harm() -> None:
    dice = random.Random(659)
    session = {
        version: encode(version, T.REGISTER, pod="p", namespace="n", gpu="0")
        + encode(version, T.REQ_LOCK)
        + encode(version, T.LOCK_RELEASED)
        for version in VERSIONS
    }
    reasons = set()
    for _ in range(100_000):
        data = bytearray(session[dice.choice(VERSIONS)])
        for _ in range(dice.randrange(1, 4)):
            _mutate(data, dice)
        messages = Decoder().feed(bytes(data))
        reasons |= {message.reason for message in messages if isinstance(message, ProtocolError)}
    assert reasons >= {"unexpected_first_frame", "unexpected_type", "unknown_type"}


def _mutate(data: bytearray, dice: random.Random) -> None:
    lot = dice.random()
    if not data or lot < 0.2:
        del data[dice.randrange(len(data) + 1) :]
    elif lot < 0.6:
        data[dice.choice((0, 1, 2, 537, 659, dice.randrange(len(data)))) % len(data)] = dice.randrange(256)
    elif lot < 0.8:
        at = dice.randrange(len(data))
        data[at:at] = dice.randbytes(dice.randrange(1, 40))
    else:
        at = dice.randrange(len(data))
        del data[at : at + dice.randrange(1, 40)]
