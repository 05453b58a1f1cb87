"""The difference of two JSON documents as a small document, and its application. Pure.

In a delta, an object is a change inside that object, a list of one is the new value, and an empty list is a removal.
A list in a document is a value: a changed list is sent whole.
"""

from collections.abc import Mapping

from gpucommons.faces.documents.values import Json

Delta = dict[str, Json]


def delta(before: Mapping[str, Json], after: Mapping[str, Json]) -> Delta:
    """Empty if nothing changed."""
    changes: Delta = {}
    for key, value in after.items():
        if key not in before:
            changes[key] = [value]
            continue
        known = before[key]
        if type(value) is dict and type(known) is dict:
            inside = delta(known, value)
            if inside:
                changes[key] = inside
        elif not _same(known, value):
            changes[key] = [value]
    for key in before:
        if key not in after:
            changes[key] = []
    return changes


def _same(known: Json, value: Json) -> bool:
    """True == 1 and 1 == 1.0 in Python, but not in JSON."""
    if type(known) is not type(value):
        return False
    if type(known) is list and type(value) is list:
        return len(known) == len(value) and all(map(_same, known, value))
    if type(known) is dict and type(value) is dict:
        return not delta(known, value)
    return known == value


def apply(document: Mapping[str, Json], changes: Mapping[str, Json]) -> dict[str, Json]:
    """The document after the delta; the given one is not changed."""
    result = dict(document)
    for key, change in changes.items():
        if isinstance(change, Mapping):
            inside = result[key]
            assert isinstance(inside, Mapping)
            result[key] = apply(inside, change)
        elif isinstance(change, list):
            if change:
                result[key] = change[0]
            else:
                result.pop(key, None)
    return result
