"""Text from outside, such as a process's name, made fit for a terminal, a log line or a page."""


def printable(text: str, most: int = 10_000) -> str:
    """The text with what is not printable escaped, in at most `most` characters."""
    safe = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text[:most])
    return safe if len(safe) <= most and len(text) <= most else safe[: most - 1] + "…"
