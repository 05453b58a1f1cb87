"""The wire format of protocol buffers, for the few messages that the agent exchanges with the kubelet. Pure.

Written by hand: a dozen small messages do not justify generated code and the protobuf package, whose versions must
match. A reader takes the fields that it knows and skips the others, as the format intends.
"""

from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT_BYTES = 10


class BrokenMessage(ValueError):
    """The bytes are not a valid message."""


# Reading. A field that is repeated although it should not be counts with its last value; a missing one is empty or 0.


def text_of(message: bytes, field: int) -> str:
    *_, last = (b"", *submessages(message, field))
    return _decode_text(last)


def texts_of(message: bytes, field: int) -> list[str]:
    return [_decode_text(content) for content in submessages(message, field)]


def number_of(message: bytes, field: int) -> int:
    *_, last = (0, *(value for number, value in _fields(message) if number == field and isinstance(value, int)))
    return last


def submessages(message: bytes, field: int) -> Iterator[bytes]:
    """The contents of each length-delimited field of this number."""
    return (value for number, value in _fields(message) if number == field and isinstance(value, bytes))


def _decode_text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field; those of a fixed length, which no message here has, are skipped."""
    position = 0
    while position < len(message):
        key, position = _read_varint(message, position)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, position = _read_varint(message, position)
            yield number, value
            continue
        if kind == _BYTES:
            size, position = _read_varint(message, position)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise BrokenMessage(f"a field of the unknown kind {kind}")
        end = position + size
        if end > len(message):
            raise BrokenMessage("a field that is longer than the message")
        if kind == _BYTES:
            yield number, message[position:end]
        position = end


def _read_varint(message: bytes, position: int) -> tuple[int, int]:
    """The number at `position`, and the position after it."""
    value = 0
    for count, byte in enumerate(message[position : position + _LONGEST_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value, position + count + 1
    raise BrokenMessage("a number that does not end")


# Writing. A message is the bytes of its fields, one after the other. A field with its default value is left out.


def text_field(field: int, text: str) -> bytes:
    return message_field(field, text.encode()) if text else b""


def message_field(field: int, message: bytes) -> bytes:
    return _varint(field << 3 | _BYTES) + _varint(len(message)) + message


def flag_field(field: int, flag: bool) -> bytes:
    return _varint(field << 3 | _VARINT) + b"\x01" if flag else b""


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
