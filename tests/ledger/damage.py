"""Random damage to the content of a file, by kind."""

import random
from collections.abc import Callable, Mapping

PAGE = 4096


def _bytes(dice: random.Random, content: bytearray) -> None:
    for _ in range(dice.choice((1, 4, 16, 64))):
        at, length = dice.randrange(len(content)), dice.choice((1, 8, 64))
        content[at : at + length] = dice.randbytes(len(content[at : at + length]))


def _pages(dice: random.Random, content: bytearray) -> None:
    for _ in range(dice.choice((1, 2, 4))):
        at = dice.randrange(len(content) // PAGE) * PAGE
        content[at : at + PAGE] = dice.choice((bytes(PAGE), dice.randbytes(PAGE)))


def _end(dice: random.Random, content: bytearray) -> None:
    del content[dice.randrange(len(content) // 2, len(content)) :]


def _head(dice: random.Random, content: bytearray) -> None:
    for at in (dice.randrange(100), dice.randrange(PAGE)):
        content[at] = dice.randrange(256)


KINDS: Mapping[str, Callable[[random.Random, bytearray], None]] = {
    "1 to 64 changes of 1 to 64 bytes": _bytes,
    "1 to 4 pages overwritten": _pages,
    "the end is missing, at most half": _end,
    "2 bytes of the header and the schema": _head,
}


def damaged(content: bytes, kind: str, seed: int) -> bytes:
    changed = bytearray(content)
    KINDS[kind](random.Random(seed), changed)
    return bytes(changed)


def damaged_at_random(content: bytes, seed: int) -> bytes:
    return damaged(content, random.Random(seed).choice(tuple(KINDS)), seed)
