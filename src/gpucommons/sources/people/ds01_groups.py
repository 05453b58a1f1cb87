"""DS01's groups: a file `<group>.members` for each, one user name per line. Pure except for `read_members`."""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from gpucommons.sources.people.groups import Membership

_MOST_BYTES = 1 << 20
_SUFFIX = ".members"
# Former users: DS01 keeps the list and ignores it.
_ARCHIVED = "archived"
_NOT_IN_A_SLICE = re.compile(r"[^a-zA-Z0-9:]+", re.ASCII)
_LONGEST_NAME, _HASH_DIGITS = 32, 4


def read_members(directory: Path) -> dict[str, str]:
    """The text of each group's file, by group. Empty if this is not a DS01 node."""
    found = {}
    try:
        files = sorted(directory.glob(f"*{_SUFFIX}"))
    except OSError:
        return {}
    for file in files:
        group = file.name.removesuffix(_SUFFIX)
        try:
            with file.open("rb") as opened:
                text = opened.read(_MOST_BYTES).decode("utf-8", "replace")
        except OSError:
            continue
        if group and group != _ARCHIVED:
            found[group] = text
    return found


def ds01_membership(texts: Mapping[str, str]) -> Membership:
    """A user in two groups is billed under the last one by name, as in DS01."""
    members = {group: frozenset(_names(text)) for group, text in sorted(texts.items())}
    return Membership({user: group for group, people in members.items() for user in people}, members)


def slice_name(user: str) -> str:
    """A user name as DS01 writes it in `ds01-<group>-<user>.slice`: without domain and dots."""
    short = _NOT_IN_A_SLICE.sub("_", user.partition("@")[0]).strip("_")
    if len(short) <= _LONGEST_NAME:
        return short
    digits = hashlib.md5(user.encode(), usedforsecurity=False).hexdigest()[:_HASH_DIGITS]
    return f"{short[: _LONGEST_NAME - _HASH_DIGITS - 1].rstrip('_')}_{digits}"


def _names(text: str) -> list[str]:
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return [line for line in lines if line]
