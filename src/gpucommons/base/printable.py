"""Text from outside, safe to show in a terminal. Pure.

Names come from users, pods, drivers and files. Control characters (escape sequences, newlines), bidirectional marks and
invisible characters can change or hide what a terminal shows: they are shown escaped.
"""


def printable(text: str, most: int = 10_000) -> str:
    """The text with what is not printable escaped, and at most `most` characters of it."""
    safe = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    return safe if len(safe) <= most else safe[: most - 1] + "…"
