"""The groups of users, from the texts of passwd and group, and from DS01's files. Invalid lines are left out."""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from gpucommons.base.text import lines_of

# The groups of users, from the texts of passwd and group. Pure; invalid lines are left out.

_NUMBER = re.compile("[0-9]{1,10}", re.ASCII)
# The range that distributions use for people; system users are below it, "nobody" and containers above it.
_FIRST, _LAST = 1000, 60_000


class Membership(NamedTuple):
    """`group_of`: the group that a user is billed under; `members`: all users of each group of people."""

    group_of: Mapping[str, str]
    members: Mapping[str, frozenset[str]]


class _Person(NamedTuple):
    name: str
    gid: int


class _Group(NamedTuple):
    name: str
    gid: int
    listed: frozenset[str]


def membership(passwd: str, group: str) -> Membership:
    """A group with the name of its only user carries no information and is left out."""
    people, groups = _people(passwd), _groups(group)
    primary = {person.name: person.gid for person in people}
    members = {
        group.name: people_of
        for group in groups
        if (people_of := _members(group, people, primary)) and people_of != {group.name}
    }
    return Membership(
        {person.name: name for person in people if (name := _billing_group(person, groups, members))}, members
    )


def _members(group: _Group, people: list[_Person], primary: Mapping[str, int]) -> frozenset[str]:
    at_home = {person.name for person in people if person.gid == group.gid}
    if not _FIRST <= group.gid <= _LAST:
        # System groups (docker, video) grant rights; but one of them ("users") may be the primary group of people.
        return frozenset(at_home)
    return frozenset(at_home | (group.listed & primary.keys()))


def _billing_group(person: _Person, groups: list[_Group], members: Mapping[str, frozenset[str]]) -> str:
    """The primary group if it has other members, else the first other group by number."""
    theirs = [group for group in groups if person.name in members.get(group.name, ()) and group.name != person.name]
    own = [group.name for group in theirs if group.gid == person.gid]
    return next(iter(own or [group.name for group in theirs]), "")


def _people(passwd: str) -> list[_Person]:
    by_name: dict[str, _Person] = {}
    for line in lines_of(passwd):
        name, uid, gid = _fields(line, 2, 3)
        if uid is not None and gid is not None and _FIRST <= uid <= _LAST:
            by_name.setdefault(name, _Person(name, gid))
    return list(by_name.values())


def _groups(group: str) -> list[_Group]:
    by_name: dict[str, _Group] = {}
    for line in lines_of(group):
        name, gid, _ = _fields(line, 2, 2)
        if gid is not None:
            listed = frozenset(member.strip() for member in line.split(":")[3].split(",") if member.strip())
            by_name.setdefault(name, _Group(name, gid, listed))
    return sorted(by_name.values(), key=lambda group: group.gid)


def _fields(line: str, first: int, second: int) -> tuple[str, int | None, int | None]:
    """The name and two numbers of a line; None if the line is invalid."""
    fields = line.split(":")
    if len(fields) < 4 or not fields[0]:
        return "", None, None
    numbers = [int(fields[n]) if _NUMBER.fullmatch(fields[n]) else None for n in (first, second)]
    return fields[0], numbers[0], numbers[1]


# DS01's groups: a file `<group>.members` for each, one user name per line. Pure except for `read_members`.

_MAX_BYTES = 1 << 20
_SUFFIX = ".members"
# Former users: DS01 keeps the list and ignores it.
_ARCHIVED = "archived"
_NOT_IN_A_SLICE = re.compile(r"[^a-zA-Z0-9:]+", re.ASCII)
_LONGEST_NAME, _HASH_DIGITS = 32, 4


def read_members(directory: Path) -> dict[str, str]:
    """The text of each group's file, by group. Empty if this is not a DS01 node."""
    text_of_group = {}
    try:
        files = sorted(directory.glob(f"*{_SUFFIX}"))
    except OSError:
        return {}
    for file in files:
        group = file.name.removesuffix(_SUFFIX)
        try:
            with file.open("rb") as opened:
                text = opened.read(_MAX_BYTES).decode("utf-8", "replace")
        except OSError:
            continue
        if group and group != _ARCHIVED:
            text_of_group[group] = text
    return text_of_group


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
    lines = (line.partition("#")[0].strip() for line in lines_of(text))
    return [line for line in lines if line]
