"""Text from outside: numbers and amounts, mail addresses, text for a terminal or in markup, lines of a stream. Pure.

Every command imports this module: it imports nothing but the standard library.
"""

import re
from collections.abc import Iterable
from typing import Final

# Whole numbers as other programs write them: ASCII digits only.
#
# `str.isdigit` is also true for characters such as `²`, which `int` rejects, and `int` also accepts `١` and `1_000`.

# Enough for 64 bits, and far below the length limit of `int`.
_MAX_DIGITS: Final = 20


def parse_decimal(text: str) -> int | None:
    """The number in `text`; None if it is not a number or has more than 20 digits."""
    return int(text) if len(text) <= _MAX_DIGITS and text.isascii() and text.isdigit() else None


# Text in markup.
#
# Not html.escape: its module brings the table of all named characters, a third of a megabyte in the agent.

_MARKUP: Final = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"})


def escape(text: str) -> str:
    """`text` as it is written between tags, or as the value of an attribute."""
    return text.translate(_MARKUP)


# Amounts of memory and shares of a GPU as people write them: `8Gi`, `512Mi`, `50%`. Pure.

_UNITS: Final = {
    "": 1,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 1 << 10,
    "Mi": 1 << 20,
    "Gi": 1 << 30,
    "Ti": 1 << 40,
}
_QUANTITY: Final = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*(Ki|Mi|Gi|Ti|K|M|G|T|)B?", re.ASCII)
# Less is a forgotten unit: no program gets by with less than this on a GPU.
_LEAST_ON_GPU: Final = 1 << 20
LARGEST_BYTES: Final = 1 << 60


def parse_memory(text: str) -> int:
    """Bytes of `8Gi`, `512Mi`, `10G`, `1073741824`; raises ValueError on anything else."""
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"invalid amount of memory {text!r}: use bytes, or a number with Ki, Mi, Gi, Ti, K, M, G or T")
    amount = int(float(match[1]) * _UNITS[match[2]])
    if not 0 < amount <= LARGEST_BYTES:
        raise ValueError(f"invalid amount of memory {text!r}: use more than 0 and at most 1024 PiB")
    return amount


def parse_gpu_memory(text: str) -> int:
    """As `parse_memory`, for memory of a GPU. Raises ValueError for an amount that lacks its unit, such as `20`."""
    amount = parse_memory(text)
    if amount < _LEAST_ON_GPU:
        number = text.strip().rstrip("B ")
        raise ValueError(f"{text!r} is {amount} bytes: add a unit, such as {number}G for {number} GB")
    return amount


_DECIMAL: Final = ((10**6, "MB"), (10**9, "GB"), (10**12, "TB"))
_BINARY: Final = ((1 << 20, "MiB"), (1 << 30, "GiB"), (1 << 40, "TiB"))


def memory_text(amount_bytes: int, like_bytes: int | None = None) -> str:
    """`20 GB`, `512 MB` or `1.5 TiB`: in the unit in which the amount has the fewest digits, as its user wrote it.

    An amount that was measured is shown in the unit of `like_bytes`, which was asked for; in gigabytes where it has no
    place there: 512 MB are asked for, and the GPU has 150.3 GB.
    """
    size, unit = _unit_of(amount_bytes if like_bytes is None else like_bytes)
    if like_bytes is None:
        digits = 3 if amount_bytes * 1000 % size == 0 else 1
        return f"{_without_zeros(f'{amount_bytes / size:.{digits}f}')} {unit}"
    megabytes, gigabytes, terabytes = _DECIMAL if (size, unit) in _DECIMAL else _BINARY
    is_beyond = (size, unit) == megabytes and amount_bytes >= 1000 * size
    is_below = (size, unit) == terabytes and amount_bytes < size
    if is_beyond or is_below:
        size, unit = gigabytes
    return f"{_without_zeros(f'{amount_bytes / size:.1f}')} {unit}"


def _unit_of(amount_bytes: int) -> tuple[int, str]:
    """The unit in which an amount that a person wrote has the fewest digits; GiB for one that was measured."""

    def digits(each: tuple[int, str]) -> tuple[bool, int]:
        return amount_bytes < each[0], len(_without_zeros(f"{amount_bytes / each[0]:.3f}").replace(".", ""))

    exact = [(size, unit) for size, unit in (*_DECIMAL, *_BINARY) if amount_bytes * 1000 % size == 0]
    return min(exact, key=digits, default=_BINARY[1])


def _without_zeros(number: str) -> str:
    return number.rstrip("0").rstrip(".")


def gibibytes(amount_bytes: int) -> str:
    return f"{amount_bytes / (1 << 30):.1f} GiB"


def qualified_name(namespace: str, name: str) -> str:
    """The name of an owner or a pod: `namespace/name` in Kubernetes, else `name`."""
    return f"{namespace}/{name}" if namespace and name else name


def parse_core(text: str) -> int:
    """Percent of the GPU's time, 1..100; raises ValueError on anything else."""
    percent = parse_decimal(text.strip().removesuffix("%"))
    if percent is None or not 1 <= percent <= 100:
        raise ValueError(f"invalid share of a GPU {text!r}: use a whole number from 1 to 100")
    return percent


# Email addresses as this project accepts them: plain ones, without a display name, comments or quotes. Pure.

USER_PLACE: Final = "{user}"
_ADDRESS: Final = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?")


def is_mail_address(text: str) -> bool:
    """Nothing in it can end a header or add a recipient."""
    return _ADDRESS.fullmatch(text) is not None and USER_PLACE not in text


def user_address(pattern: str, user: str) -> str:
    """The address of a user; empty where that would be no address."""
    address = pattern.replace(USER_PLACE, user) if user else "" if USER_PLACE in pattern else pattern
    return address if is_mail_address(address) else ""


# Text from outside, safe to show in a terminal. Pure.
#
# Names come from users, pods, drivers and files. Control characters (escape sequences, newlines), bidirectional marks
# and invisible characters can change or hide what a terminal shows: they are shown escaped.
#
# The functions return the type Printable, and the commands print nothing else. `tests/house/test_output.py` checks it.


# Letters and marks that take no place, or that of a space: two names that differ only in them look the same. Python
# counts them as printable.
_INVISIBLE: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\uffa0\ufe00-\ufe0f\U000e0100-\U000e01ef]"
)


class Printable(str):
    """Printable characters and our own line breaks. Made in this module only; joined with other text it is a str."""

    __slots__ = ()


def printable(text: str, most: int = 10_000) -> Printable:
    """One line: the text with what is not printable escaped, and at most `most` characters of it."""
    safe = text if _is_safe(text) else "".join(c if _is_safe(c) else _escape(c) for c in text)
    return Printable(safe if len(safe) <= most else safe[: most - 1] + "…")


def printable_lines(lines: Iterable[str]) -> Printable:
    """Lines, each with its line break. A break inside a line is escaped like every other control character."""
    return Printable("".join(f"{printable(line, len(line) * 10)}\n" for line in lines))


def printable_json(text: str) -> Printable:
    """A JSON text with the same value. Only strings in it can have such characters, and JSON has an escape for each."""
    return Printable("".join(c if _is_safe(c) or c == "\n" else _escape_json(c) for c in text))


def _is_safe(text: str) -> bool:
    return text.isprintable() and _INVISIBLE.search(text) is None


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def _escape_json(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


# Lines.


def lines_of(text: str) -> list[str]:
    """The lines of a file that has names in it, as the kernel and other programs write them: only a newline ends one.

    `str.splitlines` also splits at form feeds, carriage returns and U+2028, and a file that is opened as text also at
    carriage returns: a user may name a process or a directory of cgroups so that a part of the name looks like a line.
    """
    lines = text.split("\n")
    return lines if lines[-1] else lines[:-1]


# Splits a stream of bytes into lines of limited length. Does no I/O.


class LineTooLong(Exception):
    """A line exceeds the limit: the peer does not send what was requested."""


class LineSplitter:
    """Takes chunks as they arrive and returns whole lines. An incomplete last line is never returned."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._parts: list[bytes] = []
        self._held_bytes = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that `chunk` completes, without empty ones."""
        *whole, rest = chunk.split(b"\n")
        lines = []
        for piece in whole:
            self._hold(piece)
            lines.append(b"".join(self._parts))
            self._parts.clear()
            self._held_bytes = 0
        self._hold(rest)
        return [line for line in lines if line.strip()]

    def _hold(self, piece: bytes) -> None:
        self._held_bytes += len(piece)
        if self._held_bytes > self._max_bytes:
            raise LineTooLong(f"a line of more than {self._max_bytes} bytes")
        self._parts.append(piece)
